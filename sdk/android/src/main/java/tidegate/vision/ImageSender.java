package tidegate.vision;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import okhttp3.Credentials;
import okhttp3.HttpUrl;
import okhttp3.OkHttpClient;

/**
 * Sends images of a phone's camera to the detectors of a Tidegate node, by REST, WebSocket, or the older TCP protocol.
 *
 * <pre>{@code
 * ImageSender sender = new ImageSender.Builder("edge.example")
 *         .connectionMode(ConnectionMode.WEBSOCKET)
 *         .build(listener);
 * sender.sendImage(jpeg);   // for each picture of the camera
 * }</pre>
 *
 * <p>One image is under way at a time. One that is given meanwhile waits, and gives its place to a newer one: an answer is always about
 * a recent picture, whatever the network does. A connection that breaks is made again by itself: after a tenth of a second, twice as long
 * each time, at most 5 s. The same pauses follow an answer that is not about the image, such as that of a server that does not let in.
 *
 * <p>All methods may be called from any thread and none waits for the network.
 */
public final class ImageSender implements AutoCloseable {
    /** Port of the paper's server over HTTP and WebSocket. */
    public static final int HTTP_PORT = 8008;
    /** Port of its TCP protocol. */
    public static final int TCP_PORT = 8011;

    private static final long REST_MS_MIN = 100;
    private static final long REST_MS_MAX = 5000;

    private final Object lock = new Object();
    private final ImageListener listener;
    private final Executor executor;
    private final Builder made;
    private final OkHttpClient http;
    private final boolean ownsHttp;
    private final ScheduledExecutorService timers;
    private final LatencyStats fullProcess = new LatencyStats();
    private final LatencyStats server = new LatencyStats();
    private final LatencyStats network = new LatencyStats();

    // All of these under the lock.
    private Connection connection;
    private CameraMode mode;
    private byte[] waiting;
    private boolean isBusy;
    private boolean isResting;
    private boolean isClosed;
    private long number;
    private long startedNs;
    private long restMs = REST_MS_MIN;
    private long skipped;
    private ScheduledFuture<?> timer;

    /** Says how a sender is made. */
    public static final class Builder {
        private final String host;
        private int port;
        private boolean tls;
        private String authorization;
        private ConnectionMode connectionMode = ConnectionMode.WEBSOCKET;
        private CameraMode cameraMode = CameraMode.FACE_DETECTION;
        private int timeoutMs = 10_000;
        private OkHttpClient client;
        private Executor executor = Runnable::run;

        /** A sender to the node on that host. */
        public Builder(String host) {
            this.host = host;
        }

        /** Its port; {@link ImageSender#HTTP_PORT} or {@link ImageSender#TCP_PORT} by default. */
        public Builder port(int port) {
            this.port = port;
            return this;
        }

        /** Whether TLS is spoken, as on the node's port 7080 and by its {@code wss} listener. */
        public Builder tls(boolean tls) {
            this.tls = tls;
            return this;
        }

        /** Who calls, for port 7080. */
        public Builder user(String name, String password) {
            this.authorization = Credentials.basic(name, password);
            return this;
        }

        /** Who calls, for port 7080. */
        public Builder token(String token) {
            this.authorization = "Bearer " + token;
            return this;
        }

        /** WebSocket by default. */
        public Builder connectionMode(ConnectionMode connectionMode) {
            this.connectionMode = connectionMode;
            return this;
        }

        /** Faces by default. */
        public Builder cameraMode(CameraMode cameraMode) {
            this.cameraMode = cameraMode;
            return this;
        }

        /** Longest time for an answer, in ms; 10000 by default. */
        public Builder timeoutMs(int timeoutMs) {
            this.timeoutMs = timeoutMs;
            return this;
        }

        /** The application's client, for its certificates and pins; one of its own by default. */
        public Builder client(OkHttpClient client) {
            this.client = client;
            return this;
        }

        /** Where the listener is called: in an activity, {@code ContextCompat.getMainExecutor(this)}. The thread of the network by default. */
        public Builder executor(Executor executor) {
            this.executor = executor;
            return this;
        }

        /**
         * Makes the sender, which connects at the first image.
         *
         * @throws IllegalArgumentException a setting that cannot be
         */
        public ImageSender build(ImageListener listener) {
            if (timeoutMs < 1 || port < 0 || port > 65535) {
                throw new IllegalArgumentException("a timeout is 1 ms or longer, a port up to 65535");
            }
            if (authorization != null && !tls) {
                throw new IllegalArgumentException("a password or a token does not travel without TLS: tls(true)");
            }
            if (connectionMode == ConnectionMode.PERSISTENT_TCP && tls) {
                throw new IllegalArgumentException("the TCP protocol has no TLS and no password: use WEBSOCKET");
            }
            return new ImageSender(this, listener);
        }

        private int portOrDefault() {
            return port != 0 ? port : connectionMode == ConnectionMode.PERSISTENT_TCP ? TCP_PORT : HTTP_PORT;
        }

        private HttpUrl base() {
            return new HttpUrl.Builder().scheme(tls ? "https" : "http").host(host).port(portOrDefault()).build();
        }
    }

    private ImageSender(Builder made, ImageListener listener) {
        this.made = made;
        this.listener = listener;
        this.executor = made.executor;
        this.mode = made.cameraMode;
        this.ownsHttp = made.client == null;
        OkHttpClient base = ownsHttp ? new OkHttpClient() : made.client;
        // A network that went away under a WebSocket shows by its pings.
        this.http = base.newBuilder()
                .connectTimeout(made.timeoutMs, TimeUnit.MILLISECONDS)
                .readTimeout(made.timeoutMs, TimeUnit.MILLISECONDS)
                .writeTimeout(made.timeoutMs, TimeUnit.MILLISECONDS)
                .pingInterval(5, TimeUnit.SECONDS)
                .build();
        ThreadFactory daemon = task -> {
            Thread thread = new Thread(task, "tidegate-timers");
            thread.setDaemon(true);
            return thread;
        };
        this.timers = Executors.newSingleThreadScheduledExecutor(daemon);
    }

    /**
     * Sends a JPEG or PNG image, now or as soon as the one before was answered; an image that waits is replaced.
     *
     * @throws IllegalStateException the sender is closed
     */
    public void sendImage(byte[] image) {
        synchronized (lock) {
            if (isClosed) {
                throw new IllegalStateException("the sender is closed");
            }
            if (waiting != null) {
                skipped++;
            }
            waiting = image;
        }
        pump();
    }

    /** Chooses the detector for the images to come. */
    public void setCameraMode(CameraMode mode) {
        synchronized (lock) {
            this.mode = mode;
        }
    }

    /** Whether an image is under way, so that the next one would wait. */
    public boolean isBusy() {
        synchronized (lock) {
            return isBusy;
        }
    }

    /** Images that gave their place to newer ones. */
    public long skipped() {
        synchronized (lock) {
            return skipped;
        }
    }

    /** From the leaving of an image to its answer. */
    public LatencyStats fullProcess() {
        return fullProcess;
    }

    /** The part of it that the node took. */
    public LatencyStats server() {
        return server;
    }

    /** The round trips of {@link #measureNetwork}. */
    public LatencyStats network() {
        return network;
    }

    /**
     * Measures the network alone: the time to open a TCP connection to the node. Waits for it, so not on the main thread of an activity.
     *
     * @return ms
     */
    public double measureNetwork() throws IOException {
        long began = System.nanoTime();
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(made.host, made.portOrDefault()), made.timeoutMs);
        }
        double ms = (System.nanoTime() - began) / 1e6;
        network.add(ms);
        return ms;
    }

    /** Ends the connection; an image under way has no answer. Idempotent. */
    @Override
    public void close() {
        Connection open;
        synchronized (lock) {
            isClosed = true;
            waiting = null;
            open = connection;
            connection = null;
        }
        if (open != null) {
            open.close();
        }
        timers.shutdownNow();
        if (ownsHttp) {
            http.dispatcher().executorService().shutdown();
            http.connectionPool().evictAll();
        }
    }

    private void pump() {
        byte[] image;
        CameraMode chosen;
        Connection open;
        long now;
        synchronized (lock) {
            if (isClosed || isBusy || isResting || waiting == null) {
                return;
            }
            image = waiting;
            waiting = null;
            isBusy = true;
            chosen = mode;
            now = ++number;
            if (connection == null) {
                connection = connect();
            }
            open = connection;
            startedNs = System.nanoTime();
            timer = timers.schedule(() -> late(now), made.timeoutMs, TimeUnit.MILLISECONDS);
        }
        open.send(image, chosen, new Connection.Answer() {
            @Override
            public void answered(String json) {
                ImageSender.this.answered(now, chosen, json);
            }

            @Override
            public void failed(VisionException error) {
                ImageSender.this.failed(now, error);
            }
        });
    }

    private Connection connect() {
        switch (made.connectionMode) {
            case REST:
                return new HttpConnections.Rest(http, made.base(), made.authorization);
            case WEBSOCKET:
                return new HttpConnections.Socket(http, made.base(), made.authorization);
            default:
                return new TcpConnection(made.host, made.portOrDefault(), made.timeoutMs);
        }
    }

    /** Ends the image of that number: its time in ms, or -1 if it had ended before. */
    private double ended(long which) {
        if (isClosed || !isBusy || which != number) {
            return -1;
        }
        isBusy = false;
        timer.cancel(false);
        return (System.nanoTime() - startedNs) / 1e6;
    }

    private void answered(long which, CameraMode chosen, String json) {
        double ms;
        synchronized (lock) {
            ms = ended(which);
            if (ms < 0) {
                return;
            }
            restMs = REST_MS_MIN;
        }
        try {
            Result result = Result.of(json, ms);
            fullProcess.add(ms);
            server.add(result.serverMs);
            tell(() -> listener.onResult(chosen, result));
        } catch (VisionException error) {
            tell(() -> listener.onError(error));
        }
        pump();
    }

    private void failed(long which, VisionException error) {
        long rest;
        synchronized (lock) {
            if (ended(which) < 0) {
                return;
            }
            rest = error.retryAfterMs();
            // A server that says how long it is to be left alone is asked again by then.
            if (error.isLasting() && (error.isConnection() || rest == 0)) {
                rest = Math.max(rest, restMs);
                restMs = Math.min(2 * restMs, REST_MS_MAX);
            }
            if (rest > 0) {
                isResting = true;
                timers.schedule(this::rested, rest, TimeUnit.MILLISECONDS);
            }
        }
        tell(() -> listener.onError(error));
        pump();
    }

    private void rested() {
        synchronized (lock) {
            isResting = false;
        }
        pump();
    }

    /** The answer does not come: later ones would be taken for it, so the connection ends, too. */
    private void late(long which) {
        Connection open;
        synchronized (lock) {
            if (isClosed || !isBusy || which != number) {
                return;
            }
            open = connection;
            connection = null;
        }
        failed(which, new VisionException("no answer within " + made.timeoutMs + " ms", true));
        open.close();
    }

    private void tell(Runnable call) {
        try {
            executor.execute(call);
        } catch (RejectedExecutionException error) {
            // The application has ended its executor, and so does not want to be told.
        }
    }
}
