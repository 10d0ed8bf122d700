package tidegate.vision;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import okhttp3.OkHttpClient;
import okhttp3.Response;
import okhttp3.WebSocket;
import okhttp3.WebSocketListener;
import okhttp3.mockwebserver.MockResponse;
import okhttp3.mockwebserver.MockWebServer;
import okhttp3.mockwebserver.RecordedRequest;
import okhttp3.mockwebserver.SocketPolicy;
import okio.ByteString;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.Timeout;

/** The sender against servers of the paper's shapes. */
public class ImageSenderTest {
    private static final String FACES = "{\"success\":\"true\",\"server_processing_time\":\"3.477\",\"rects\":[[1,2,30,40],[5,6,7,8]]}";
    private static final String NOTHING = "{\"success\":\"false\",\"server_processing_time\":\"1.000\"}";
    private static final byte[] JPEG = {(byte) 0xff, (byte) 0xd8, 1};
    private static final byte[] PNG = {(byte) 0x89, 0x50, 2};

    @Rule
    public final Timeout timeout = new Timeout(30, TimeUnit.SECONDS);

    private final MockWebServer web = new MockWebServer();
    private final Heard heard = new Heard();
    private final List<AutoCloseable> open = new ArrayList<>();

    /** Keeps what the application is told. */
    private static final class Heard implements ImageListener {
        final BlockingQueue<Object> said = new ArrayBlockingQueue<>(100);

        @Override
        public void onResult(CameraMode mode, Result result) {
            said.add(result);
        }

        @Override
        public void onError(VisionException error) {
            said.add(error);
        }

        Result result() throws InterruptedException {
            Object next = said.poll(20, TimeUnit.SECONDS);
            if (next instanceof VisionException) {
                throw new AssertionError(next);
            }
            assertNotNull("no answer", next);
            return (Result) next;
        }

        VisionException error() throws InterruptedException {
            Object next = said.poll(20, TimeUnit.SECONDS);
            assertTrue("" + next, next instanceof VisionException);
            return (VisionException) next;
        }
    }

    @Before
    public void start() throws IOException {
        web.start(InetAddress.getLoopbackAddress(), 0);
    }

    @After
    public void stop() throws Exception {
        for (AutoCloseable each : open) {
            each.close();
        }
        web.shutdown();
    }

    private ImageSender.Builder builder(ConnectionMode mode) {
        return new ImageSender.Builder("127.0.0.1").port(web.getPort()).connectionMode(mode);
    }

    private ImageSender sender(ImageSender.Builder builder) {
        ImageSender sender = builder.build(heard);
        open.add(sender);
        return sender;
    }

    @Test
    public void restSendsTheBytesAsTheyAreOverOneConnection() throws Exception {
        web.enqueue(new MockResponse().setBody(FACES));
        web.enqueue(new MockResponse().setBody(NOTHING));
        ImageSender sender = sender(builder(ConnectionMode.REST));
        sender.sendImage(JPEG);
        Result faces = heard.result();
        assertTrue(faces.found);
        assertEquals(2, faces.rects.size());
        assertArrayEquals(new int[] {1, 2, 30, 40}, faces.rects.get(0));
        assertEquals(3.477, faces.serverMs, 0);
        assertTrue(faces.fullProcessMs > 0);
        sender.sendImage(PNG);
        assertFalse(heard.result().found);
        RecordedRequest first = web.takeRequest();
        RecordedRequest second = web.takeRequest();
        assertEquals("POST /detector/detect/ HTTP/1.1", first.getRequestLine());
        assertEquals("image/jpeg", first.getHeader("Content-Type"));
        assertArrayEquals(JPEG, first.getBody().readByteArray());
        assertNull(first.getHeader("Authorization"));
        assertEquals("image/png", second.getHeader("Content-Type"));
        assertEquals("the connection is kept", 1, second.getSequenceNumber());
        assertEquals(2, sender.fullProcess().count());
        assertEquals((3.477 + 1) / 2, sender.server().average(), 1e-9);
    }

    @Test
    public void eachDetectorHasItsPathAndItsAnswer() throws Exception {
        web.enqueue(new MockResponse().setBody(
                "{\"success\":\"true\",\"subject\":\"Ann\",\"confidence\":\"12.345\",\"server_processing_time\":\"1.0\",\"rect\":[1,2,3,4]}"));
        web.enqueue(new MockResponse().setBody("{\"success\":\"true\",\"server_processing_time\":\"1.0\",\"poses\":[[[1.5,2,0.5],[3,4,1]]]}"));
        web.enqueue(new MockResponse().setBody("{\"success\":\"true\",\"server_processing_time\":\"1.0\",\"gpu_support\":false,"
                + "\"objects\":[{\"rect\":[1,2,3,4],\"class\":\"dog\",\"confidence\":\"0.98\"}]}"));
        ImageSender sender = sender(builder(ConnectionMode.REST).cameraMode(CameraMode.FACE_RECOGNITION));
        sender.sendImage(JPEG);
        Result known = heard.result();
        assertEquals("Ann", known.subject);
        assertEquals(12.345, known.distance, 0);
        assertArrayEquals(new int[] {1, 2, 3, 4}, known.rects.get(0));
        sender.setCameraMode(CameraMode.POSE_DETECTION);
        sender.sendImage(JPEG);
        assertArrayEquals(new double[] {1.5, 2, 0.5}, heard.result().poses.get(0)[0], 0);
        sender.setCameraMode(CameraMode.OBJECT_DETECTION);
        sender.sendImage(JPEG);
        Result.Thing dog = heard.result().things.get(0);
        assertEquals("dog", dog.name);
        assertEquals(0.98, dog.confidence, 0);
        assertEquals("/recognizer/predict/", web.takeRequest().getPath());
        assertEquals("/openpose/detect/", web.takeRequest().getPath());
        assertEquals("/object/detect/", web.takeRequest().getPath());
    }

    @Test
    public void errorsSayWhatTheServerSays() throws Exception {
        web.enqueue(new MockResponse().setResponseCode(501).setBody("{\"success\":\"false\",\"error\":\"OpenPose not supported on this server\"}"));
        web.enqueue(new MockResponse().setResponseCode(429).setHeader("Retry-After", "1")
                .setBody("{\"error\":{\"code\":\"limit.reached\",\"message\":\"the queue is full\"}}"));
        web.enqueue(new MockResponse().setResponseCode(502).setBody("<html>"));
        web.enqueue(new MockResponse().setBody("no JSON"));
        web.enqueue(new MockResponse().setBody(FACES));
        ImageSender sender = sender(builder(ConnectionMode.REST));
        sender.sendImage(JPEG);
        VisionException unsupported = heard.error();
        assertEquals("OpenPose not supported on this server", unsupported.getMessage());
        assertFalse(unsupported.isConnection());
        sender.sendImage(JPEG);
        VisionException full = heard.error();
        assertEquals("the queue is full", full.getMessage());
        assertEquals(1000, full.retryAfterMs());
        long before = System.nanoTime();
        sender.sendImage(JPEG);
        assertEquals("the server answered with 502", heard.error().getMessage());
        assertTrue("it is left alone as long as it asked", System.nanoTime() - before > 900_000_000);
        sender.sendImage(JPEG);
        assertTrue(heard.error().getMessage().contains("no JSON"));
        sender.sendImage(JPEG);
        assertTrue(heard.result().found);
    }

    /** A server of WebSockets that answers when it is told to. */
    private static final class Peer extends WebSocketListener {
        final BlockingQueue<WebSocket> opened = new ArrayBlockingQueue<>(10);
        final BlockingQueue<ByteString> images = new ArrayBlockingQueue<>(10);

        @Override
        public void onOpen(WebSocket socket, Response response) {
            opened.add(socket);
        }

        @Override
        public void onMessage(WebSocket socket, ByteString bytes) {
            images.add(bytes);
        }

        @Override
        public void onClosing(WebSocket socket, int code, String reason) {
            socket.close(1000, null);
        }

        ByteString image() throws InterruptedException {
            ByteString image = images.poll(20, TimeUnit.SECONDS);
            assertNotNull("no image", image);
            return image;
        }

        WebSocket open() throws InterruptedException {
            WebSocket socket = opened.poll(20, TimeUnit.SECONDS);
            assertNotNull("no WebSocket", socket);
            return socket;
        }
    }

    private static ByteString picture(int number) {
        return ByteString.of((byte) 0xff, (byte) 0xd8, (byte) number);
    }

    @Test
    public void overAWebSocketTheNewestImageWins() throws Exception {
        Peer peer = new Peer();
        web.enqueue(new MockResponse().withWebSocketUpgrade(peer));
        ImageSender sender = sender(builder(ConnectionMode.WEBSOCKET));
        sender.sendImage(picture(1).toByteArray());
        WebSocket socket = peer.open();
        assertEquals(picture(1), peer.image());
        assertTrue(sender.isBusy());
        for (int number = 2; number <= 5; number++) {
            sender.sendImage(picture(number).toByteArray());
        }
        socket.send(FACES);
        assertEquals(2, heard.result().rects.size());
        assertEquals(picture(5), peer.image());
        assertEquals(3, sender.skipped());
        socket.send(NOTHING);
        assertFalse(heard.result().found);
        assertEquals("/ws/detector/detect/", web.takeRequest().getPath());
        assertEquals(1, web.getRequestCount());
        assertTrue(sender.fullProcess().toString(), sender.fullProcess().toString().matches("min/avg/max/stddev = \\d+/\\d+/\\d+/\\d+ ms"));
    }

    @Test
    public void aWebSocketThatBreaksIsOpenedAgain() throws Exception {
        Peer first = new Peer();
        Peer second = new Peer();
        web.enqueue(new MockResponse().withWebSocketUpgrade(first));
        web.enqueue(new MockResponse().setSocketPolicy(SocketPolicy.DISCONNECT_AT_START));
        web.enqueue(new MockResponse().withWebSocketUpgrade(second));
        ImageSender sender = sender(builder(ConnectionMode.WEBSOCKET));
        sender.sendImage(picture(1).toByteArray());
        WebSocket socket = first.open();
        first.image();
        socket.close(1001, "going away");
        VisionException gone = heard.error();
        assertEquals("going away", gone.getMessage());
        assertTrue(gone.isConnection());
        sender.sendImage(picture(2).toByteArray());
        assertTrue(heard.error().isConnection());
        sender.sendImage(picture(3).toByteArray());
        socket = second.open();
        assertEquals(picture(3), second.image());
        socket.send(FACES);
        assertTrue(heard.result().found);
    }

    @Test
    public void aServerThatIsFullIsLeftAloneForAWhile() throws Exception {
        Peer first = new Peer();
        Peer second = new Peer();
        web.enqueue(new MockResponse().withWebSocketUpgrade(first));
        web.enqueue(new MockResponse().withWebSocketUpgrade(second));
        ImageSender sender = sender(builder(ConnectionMode.WEBSOCKET));
        sender.sendImage(JPEG);
        first.open().close(1013, "the queue is full");
        VisionException full = heard.error();
        assertEquals("the queue is full", full.getMessage());
        assertFalse(full.isConnection());
        assertEquals(1000, full.retryAfterMs());
        sender.sendImage(JPEG);
        second.open().send(FACES);
        assertTrue(heard.result().found);
    }

    @Test
    public void anotherDetectorIsAnotherWebSocket() throws Exception {
        Peer faces = new Peer();
        Peer poses = new Peer();
        web.enqueue(new MockResponse().withWebSocketUpgrade(faces));
        web.enqueue(new MockResponse().withWebSocketUpgrade(poses));
        ImageSender sender = sender(builder(ConnectionMode.WEBSOCKET));
        sender.sendImage(JPEG);
        faces.open().send(FACES);
        heard.result();
        sender.setCameraMode(CameraMode.POSE_DETECTION);
        sender.sendImage(JPEG);
        poses.open().send(NOTHING);
        assertFalse(heard.result().found);
        assertEquals("/ws/detector/detect/", web.takeRequest().getPath());
        assertEquals("/ws/openpose/detect/", web.takeRequest().getPath());
    }

    @Test
    public void aWebSocketThatIsRefusedSaysWhy() throws Exception {
        web.enqueue(new MockResponse().setResponseCode(401).setBody("{\"error\":{\"code\":\"auth.identity.refused\",\"message\":\"who are you?\"}}"));
        ImageSender sender = sender(builder(ConnectionMode.WEBSOCKET));
        sender.sendImage(JPEG);
        assertEquals("who are you?", heard.error().getMessage());
    }

    @Test
    public void aServerThatDoesNotLetInIsTriedLessAndLess() throws Exception {
        for (ConnectionMode mode : new ConnectionMode[] {ConnectionMode.REST, ConnectionMode.WEBSOCKET}) {
            ImageSender sender = sender(builder(mode));
            long before = System.nanoTime();
            for (int status : new int[] {401, 404, 503}) {
                web.enqueue(new MockResponse().setResponseCode(status));
                sender.sendImage(JPEG);
                VisionException refused = heard.error();
                assertFalse(mode + " " + status + ": " + refused, refused.isConnection());
            }
            assertTrue("" + mode, System.nanoTime() - before > 250_000_000);
            sender.close();
        }
    }

    @Test
    public void anImageThatIsNoneDelaysNoOther() throws Exception {
        ImageSender sender = sender(builder(ConnectionMode.REST));
        for (int count = 0; count < 10; count++) {
            web.enqueue(new MockResponse().setResponseCode(400));
            sender.sendImage(JPEG);
            heard.error();
        }
        web.enqueue(new MockResponse().setBody(FACES));
        long before = System.nanoTime();
        sender.sendImage(JPEG);
        assertTrue(heard.result().found);
        // Ten pauses would have led to 5 s.
        assertTrue(System.nanoTime() - before < 2_500_000_000L);
    }

    @Test
    public void aConnectionThatIsClosedOpensNothing() throws Exception {
        TcpPeer peer = new TcpPeer();
        open.add(peer);
        OkHttpClient client = new OkHttpClient();
        Connection[] all = {
            new HttpConnections.Rest(client, web.url("/"), null),
            new HttpConnections.Socket(client, web.url("/"), null),
            new TcpConnection("127.0.0.1", peer.listener.getLocalPort(), 1000),
        };
        web.enqueue(new MockResponse().setBody(FACES));
        for (Connection connection : all) {
            connection.close();
            // As an image does that was taken to be sent as the sender was closed.
            connection.send(JPEG, CameraMode.FACE_DETECTION, new Connection.Answer() {
                @Override
                public void answered(String json) {
                    heard.said.add(json);
                }

                @Override
                public void failed(VisionException error) {
                    heard.said.add(error);
                }
            });
        }
        assertNull(web.takeRequest(300, TimeUnit.MILLISECONDS));
        assertNull(peer.opened.poll());
        assertNull(heard.said.poll());
    }

    @Test
    public void noAnswerInTimeEndsTheConnection() throws Exception {
        Peer first = new Peer();
        Peer second = new Peer();
        web.enqueue(new MockResponse().withWebSocketUpgrade(first));
        web.enqueue(new MockResponse().withWebSocketUpgrade(second));
        ImageSender sender = sender(builder(ConnectionMode.WEBSOCKET).timeoutMs(500));
        sender.sendImage(picture(1).toByteArray());
        WebSocket slow = first.open();
        assertEquals("no answer within 500 ms", heard.error().getMessage());
        sender.sendImage(picture(2).toByteArray());
        WebSocket quick = second.open();
        // An answer that comes too late is no one's.
        slow.send(FACES);
        second.image();
        quick.send(NOTHING);
        assertFalse(heard.result().found);
        assertEquals(1, sender.fullProcess().count());
    }

    /** The paper's server of TCP, which answers with the number that it was asked with. */
    private static final class TcpPeer implements AutoCloseable {
        final ServerSocket listener = new ServerSocket(0, 10, InetAddress.getLoopbackAddress());
        final BlockingQueue<Socket> opened = new ArrayBlockingQueue<>(10);
        final BlockingQueue<byte[]> images = new ArrayBlockingQueue<>(10);

        TcpPeer() throws IOException {
            Thread thread = new Thread(this::run);
            thread.setDaemon(true);
            thread.start();
        }

        private void run() {
            while (!listener.isClosed()) {
                try (Socket socket = listener.accept()) {
                    opened.add(socket);
                    DataInputStream in = new DataInputStream(socket.getInputStream());
                    DataOutputStream out = new DataOutputStream(socket.getOutputStream());
                    for (;;) {
                        int opcode = in.readInt();
                        byte[] image = new byte[in.readInt()];
                        in.readFully(image);
                        images.add(image);
                        String json = opcode == 1 ? FACES : "{\"success\":\"false\",\"error\":\"Unsupported opcode: " + opcode + "\",\"server_processing_time\":0}";
                        byte[] text = json.getBytes(StandardCharsets.UTF_8);
                        out.writeInt(text.length);
                        out.write(text);
                    }
                } catch (IOException ended) {
                    // The next connection.
                }
            }
        }

        @Override
        public void close() throws IOException {
            listener.close();
        }
    }

    @Test
    public void tcpHasANumberALengthAndTheImage() throws Exception {
        TcpPeer peer = new TcpPeer();
        open.add(peer);
        ImageSender sender = sender(builder(ConnectionMode.PERSISTENT_TCP).port(peer.listener.getLocalPort()));
        sender.sendImage(JPEG);
        assertEquals(2, heard.result().rects.size());
        assertArrayEquals(JPEG, peer.images.take());
        sender.setCameraMode(CameraMode.OBJECT_DETECTION);
        sender.sendImage(PNG);
        assertEquals("Unsupported opcode: 4", heard.error().getMessage());
        sender.setCameraMode(CameraMode.FACE_DETECTION);
        sender.sendImage(JPEG);
        assertTrue(heard.result().found);
        assertEquals("one connection for all of them", 1, peer.opened.size());
        peer.opened.take().close();
        // The first image behind a connection that broke tells of it; the next one has a new one.
        sender.sendImage(JPEG);
        assertTrue(heard.error().isConnection());
        sender.sendImage(JPEG);
        assertTrue(heard.result().found);
    }

    @Test
    public void aServerThatIsNotThereIsTriedLessAndLess() throws Exception {
        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        for (ConnectionMode mode : ConnectionMode.values()) {
            ImageSender sender = sender(builder(mode).port(port));
            long before = System.nanoTime();
            for (int tries = 0; tries < 3; tries++) {
                sender.sendImage(JPEG);
                assertTrue(heard.error().isConnection());
            }
            assertTrue("" + mode, System.nanoTime() - before > 250_000_000);
            sender.close();
        }
    }

    @Test
    public void aPasswordTravelsByTlsAlone() {
        assertThrows(IllegalArgumentException.class, () -> builder(ConnectionMode.REST).user("ada", "secret").build(heard));
        assertThrows(IllegalArgumentException.class, () -> builder(ConnectionMode.WEBSOCKET).token("t").build(heard));
        assertThrows(IllegalArgumentException.class, () -> builder(ConnectionMode.PERSISTENT_TCP).tls(true).build(heard));
        assertThrows(IllegalArgumentException.class, () -> builder(ConnectionMode.REST).timeoutMs(0).build(heard));
    }

    @Test
    public void aSenderThatIsClosedSaysNothingMore() throws Exception {
        Peer peer = new Peer();
        web.enqueue(new MockResponse().withWebSocketUpgrade(peer));
        ImageSender sender = sender(builder(ConnectionMode.WEBSOCKET));
        sender.sendImage(JPEG);
        WebSocket socket = peer.open();
        sender.close();
        sender.close();
        socket.send(FACES);
        assertThrows(IllegalStateException.class, () -> sender.sendImage(JPEG));
        assertNull(heard.said.poll(200, TimeUnit.MILLISECONDS));
    }

    @Test
    public void theNetworkIsMeasuredByItself() throws Exception {
        ImageSender sender = sender(builder(ConnectionMode.REST));
        assertTrue(sender.measureNetwork() > 0);
        assertEquals(1, sender.network().count());
        sender.network().reset();
        assertEquals("min/avg/max/stddev = 0/0/0/0 ms", sender.network().toString());
    }
}
