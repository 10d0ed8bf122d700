package tidegate.vision;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;
import static org.junit.Assume.assumeTrue;

import java.awt.image.BufferedImage;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.imageio.ImageIO;
import org.junit.AfterClass;
import org.junit.BeforeClass;
import org.junit.ClassRule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** The sender against the plain listeners of a real node, the program that TIDEGATE_PROGRAM names, with a worker of this test. */
public class RealNodeTest {
    @ClassRule
    public static final TemporaryFolder FOLDER = new TemporaryFolder();

    private static Process node;
    private static int http;
    private static int tcp;

    @BeforeClass
    public static void start() throws Exception {
        String program = System.getenv("TIDEGATE_PROGRAM");
        assumeTrue("skipped: TIDEGATE_PROGRAM names no program", program != null);
        int[] ports = freePorts(5);
        http = ports[0];
        tcp = ports[1];
        Path worker = Paths.get(RealNodeTest.class.getResource("/face_worker.py").toURI());
        List<String> init = new ArrayList<>(Arrays.asList(program, "init"));
        for (String setting : Arrays.asList(
                "node.api_listen=127.0.0.1:" + ports[2],
                "link.listen=127.0.0.1:" + ports[3],
                "mqtt.listener.main.listen=127.0.0.1:" + ports[4],
                "vision.listen=127.0.0.1:" + http,
                "vision.tcp_listen=127.0.0.1:" + tcp,
                "vision.user=admin",
                "workers.count=1",
                "workers.command=python3 " + worker)) {
            init.add("--set");
            init.add(setting);
        }
        Process made = run("init.log", init.toArray(new String[0]));
        assertTrue(made.waitFor(60, TimeUnit.SECONDS));
        assertEquals(log("init.log"), 0, made.exitValue());
        node = run("node.log", program, "node");
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!answers(http) || !answers(tcp)) {
            assertTrue(log("node.log"), node.isAlive() && System.nanoTime() < end);
            Thread.sleep(50);
        }
    }

    @AfterClass
    public static void stop() throws Exception {
        if (node != null) {
            node.destroyForcibly().waitFor();
        }
    }

    private static int[] freePorts(int count) throws IOException {
        int[] ports = new int[count];
        List<ServerSocket> held = new ArrayList<>();
        for (int at = 0; at < count; at++) {
            ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
            held.add(socket);
            ports[at] = socket.getLocalPort();
        }
        for (ServerSocket socket : held) {
            socket.close();
        }
        return ports;
    }

    private static Process run(String log, String... command) throws IOException {
        File said = new File(FOLDER.getRoot(), log);
        return new ProcessBuilder(command).directory(FOLDER.getRoot()).redirectErrorStream(true).redirectOutput(said).start();
    }

    private static String log(String name) throws IOException {
        return new String(Files.readAllBytes(FOLDER.getRoot().toPath().resolve(name)), "UTF-8");
    }

    private static boolean answers(int port) {
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
            return socket.isConnected();
        } catch (IOException notYet) {
            return false;
        }
    }

    private static byte[] jpeg() throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        assertTrue(ImageIO.write(new BufferedImage(180, 240, BufferedImage.TYPE_INT_RGB), "jpeg", out));
        return out.toByteArray();
    }

    @Test
    public void everyWayHasTheSameAnswer() throws Exception {
        for (ConnectionMode mode : ConnectionMode.values()) {
            BlockingQueue<Object> said = new ArrayBlockingQueue<>(10);
            ImageListener listener = new ImageListener() {
                @Override
                public void onResult(CameraMode camera, Result result) {
                    said.add(result);
                }

                @Override
                public void onError(VisionException error) {
                    said.add(error);
                }
            };
            int port = mode == ConnectionMode.PERSISTENT_TCP ? tcp : http;
            try (ImageSender sender = new ImageSender.Builder("127.0.0.1").port(port).connectionMode(mode).build(listener)) {
                for (int count = 0; count < 5; count++) {
                    sender.sendImage(jpeg());
                    Object next = said.poll(30, TimeUnit.SECONDS);
                    assertTrue(mode + ": " + next, next instanceof Result);
                    Result result = (Result) next;
                    assertTrue(result.found);
                    assertArrayEquals(new int[] {10, 20, 40, 60}, result.rects.get(0));
                    assertTrue(mode + ": " + result.serverMs + " of " + result.fullProcessMs + " ms", result.serverMs > 0 && result.serverMs <= result.fullProcessMs);
                }
                assertEquals(5, sender.fullProcess().count());
                // What is no image has no answer, and the next one has.
                sender.sendImage("%PDF-1.4".getBytes("UTF-8"));
                Object refused = said.poll(30, TimeUnit.SECONDS);
                assertTrue(mode + ": " + refused, refused instanceof VisionException);
                sender.sendImage(jpeg());
                Object next = said.poll(30, TimeUnit.SECONDS);
                assertTrue(mode + ": " + next, next instanceof Result);
            }
        }
    }
}
