// Cameras that tests make: one that speaks HTTP as webcams do, and one that speaks RTSP with ffmpeg's H.264.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { request } from "node:https";
import { createServer as createTcpServer } from "node:net";
import { join } from "node:path";

import { freePort, poll } from "./site.mjs";

const PICTURES_EVERY_MS = 200;

/** As many different originals of a camera of `site` as asked for, in their order. */
export async function pictures(site, camera, count) {
  const found = new Map();
  await poll(async () => {
    const { at, jpeg } = await snapshot(site, camera);
    if (at) found.set(at, jpeg);
    return found.size >= count;
  }, `${count} pictures of ${camera}`);
  return [...found.values()];
}

function snapshot(site, camera) {
  return new Promise((resolve) => {
    const options = { auth: `admin:${site.password}`, rejectUnauthorized: false };
    const asked = request(`${site.url}/cameras/${camera}/snapshot.jpg`, options, async (answer) => {
      const parts = [];
      for await (const part of answer) parts.push(part);
      resolve({ at: answer.headers["tidegate-captured-at"], jpeg: Buffer.concat(parts) });
    });
    // The node may not be up yet.
    asked.on("error", () => resolve({}));
    asked.end();
  });
}

/** Shows `jpegs` in turn at `url`, to each who asks, as a stream of JPEG images. */
export class Webcam {
  static async start(jpegs) {
    const camera = new Webcam();
    let shown = 0;
    camera.watchers = new Set();
    camera.server = createServer((asked, answer) => {
      answer.writeHead(200, { "Content-Type": "multipart/x-mixed-replace; boundary=frame" });
      camera.watchers.add(answer);
      answer.on("close", () => camera.watchers.delete(answer));
    });
    camera.clock = setInterval(() => {
      const jpeg = jpegs[shown++ % jpegs.length];
      for (const watcher of camera.watchers) {
        watcher.write(`--frame\r\nContent-Type: image/jpeg\r\nContent-Length: ${jpeg.length}\r\n\r\n`);
        watcher.write(jpeg);
        watcher.write("\r\n");
      }
    }, PICTURES_EVERY_MS);
    camera.server.listen(0, "127.0.0.1");
    await once(camera.server, "listening");
    camera.url = `http://127.0.0.1:${camera.server.address().port}/video.mjpg`;
    return camera;
  }

  stop() {
    clearInterval(this.clock);
    this.server.closeAllConnections();
    this.server.close();
  }
}

/**
 * Plays `jpegs` at `url` as H.264 over RTSP, its packets within the connection. ffmpeg encodes them and makes the packets, which come here
 * by UDP; the first port is that of the pictures, the one behind it that of the sender reports.
 */
export class RtspCamera {
  static async start(folder, jpegs) {
    const camera = new RtspCamera();
    mkdirSync(folder);
    jpegs.forEach((jpeg, number) => writeFileSync(join(folder, `${String(number).padStart(3, "0")}.jpg`), jpeg));
    camera.players = new Set();
    const port = await camera.receive();
    const description = join(folder, "camera.sdp");
    const encode = ["-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-pix_fmt", "yuv420p", "-g", "10"];
    const input = ["-re", "-stream_loop", "-1", "-framerate", "5", "-i", join(folder, "%03d.jpg")];
    const output = ["-f", "rtp", "-sdp_file", description, `rtp://127.0.0.1:${port}?pkt_size=1400`];
    camera.encoder = spawn("ffmpeg", ["-loglevel", "error", "-nostdin", ...input, ...encode, ...output], { stdio: ["ignore", "ignore", "inherit"] });
    await poll(() => {
      assert.equal(camera.encoder.exitCode, null, "ffmpeg encodes");
      try {
        camera.description = readFileSync(description, "utf8");
      } catch {}
      return camera.description?.includes("a=rtpmap");
    }, "the description of the stream");
    camera.server = createTcpServer((socket) => camera.serve(socket));
    camera.server.listen(0, "127.0.0.1");
    await once(camera.server, "listening");
    camera.url = `rtsp://127.0.0.1:${camera.server.address().port}/live`;
    return camera;
  }

  /** Takes ffmpeg's packets at two ports in a row, and hands them to all who play; the first port. */
  async receive() {
    for (;;) {
      const port = (await freePort()) & ~1;
      const sockets = [0, 1].map((channel) =>
        createSocket("udp4", (packet) => {
          const head = Buffer.from([0x24, channel, packet.length >> 8, packet.length & 0xff]);
          for (const player of this.players) player.write(Buffer.concat([head, packet]));
        }),
      );
      try {
        await Promise.all(
          sockets.map((socket, channel) => {
            const bound = once(socket, "listening");
            socket.bind(port + channel, "127.0.0.1");
            return bound;
          }),
        );
        this.sockets = sockets;
        return port;
      } catch {
        // One of the two is another program's.
        for (const socket of sockets) socket.close();
      }
    }
  }

  serve(socket) {
    let text = "";
    socket.on("error", () => {});
    socket.on("close", () => this.players.delete(socket));
    socket.on("data", (bytes) => {
      text += bytes.toString("latin1");
      for (let end; (end = text.indexOf("\r\n\r\n")) >= 0; text = text.slice(end + 4)) this.answer(socket, text.slice(0, end));
    });
  }

  answer(socket, asked) {
    const method = /(\w+) rtsp:/.exec(asked)?.[1];
    const number = /^CSeq: *(\d+)/im.exec(asked)?.[1];
    // Receiver reports, which the camera has no use for, stand between requests.
    if (!method || !number) return;
    let body = "";
    const head = ["RTSP/1.0 200 OK", `CSeq: ${number}`, "Session: 1"];
    if (method === "OPTIONS") head.push("Public: OPTIONS, DESCRIBE, SETUP, PLAY, GET_PARAMETER, TEARDOWN");
    if (method === "DESCRIBE") {
      body = this.description;
      head.push("Content-Type: application/sdp", `Content-Base: ${this.url}/`, `Content-Length: ${body.length}`);
    }
    if (method === "SETUP") head.push("Transport: RTP/AVP/TCP;unicast;interleaved=0-1");
    socket.write(`${head.join("\r\n")}\r\n\r\n${body}`);
    if (method === "PLAY") this.players.add(socket);
  }

  stop() {
    this.encoder.kill("SIGKILL");
    for (const socket of this.sockets) socket.close();
    for (const player of this.players) player.destroy();
    this.server.close();
  }
}
