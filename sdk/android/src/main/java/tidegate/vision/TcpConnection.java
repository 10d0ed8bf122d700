package tidegate.vision;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * The older protocol: a number of the detector, a length and the image; a length and JSON come back. Numbers are four bytes, big-endian.
 */
final class TcpConnection implements Connection {
    private static final int ANSWER_BYTES_MAX = 4 << 20;

    private final InetSocketAddress address;
    private final int timeoutMs;
    /** One thread: the answer to an image is read before the next is sent. */
    private final ExecutorService thread = Executors.newSingleThreadExecutor();
    private Socket socket;
    private boolean isClosed;

    TcpConnection(String host, int port, int timeoutMs) {
        // Resolved at each connection: a phone changes its network.
        this.address = InetSocketAddress.createUnresolved(host, port);
        this.timeoutMs = timeoutMs;
    }

    @Override
    public synchronized void send(byte[] image, CameraMode mode, Answer answer) {
        if (isClosed) {
            return;
        }
        thread.execute(() -> {
            String json;
            try {
                json = ask(image, mode);
            } catch (IOException error) {
                drop();
                answer.failed(new VisionException("the server is not reached: " + error.getMessage(), true));
                return;
            }
            answer.answered(json);
        });
    }

    private String ask(byte[] image, CameraMode mode) throws IOException {
        Socket open;
        synchronized (this) {
            if (isClosed) {
                throw new IOException("the connection is closed");
            }
            if (socket == null) {
                socket = new Socket();
            }
            open = socket;
        }
        if (!open.isConnected()) {
            open.setTcpNoDelay(true);
            open.connect(new InetSocketAddress(address.getHostString(), address.getPort()), timeoutMs);
            open.setSoTimeout(timeoutMs);
        }
        byte[] request = new byte[8 + image.length];
        java.nio.ByteBuffer.wrap(request).putInt(mode.opcode).putInt(image.length).put(image);
        // In one piece: small ones would wait for an acknowledgement each.
        DataOutputStream out = new DataOutputStream(open.getOutputStream());
        out.write(request);
        out.flush();
        DataInputStream in = new DataInputStream(open.getInputStream());
        int length = in.readInt();
        if (length < 0 || length > ANSWER_BYTES_MAX) {
            throw new IOException("an answer of " + length + " bytes");
        }
        byte[] answer = new byte[length];
        in.readFully(answer);
        return new String(answer, StandardCharsets.UTF_8);
    }

    private synchronized void drop() {
        Socket open = socket;
        socket = null;
        if (open != null) {
            try {
                open.close();
            } catch (IOException error) {
                // It is gone either way.
            }
        }
    }

    @Override
    public synchronized void close() {
        isClosed = true;
        // The thread that reads it gets an error, and ends what it was asked.
        drop();
        thread.shutdown();
    }
}
