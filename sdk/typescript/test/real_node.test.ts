/** A real node with a camera that plays a generated scene, as processes of the program that TIDEGATE_PROGRAM names. */

import assert from "node:assert/strict";
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import * as net from "node:net";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { connect, FrameMissingError, IdentityRefusedError, ImageRefusedError, LinkDownError, ModelUnknownError, type Client } from "../src/index.js";

const PROGRAM = process.env["TIDEGATE_PROGRAM"];
const SCENE = "scene:street?size=640x360&fps=10&seconds=3";
const READY_MS = 60_000;

async function freePorts(count: number): Promise<number[]> {
  const servers = Array.from({ length: count }, () => net.createServer().listen(0, "127.0.0.1"));
  await Promise.all(servers.map((server) => once(server, "listening")));
  const ports = servers.map((server) => (server.address() as net.AddressInfo).port);
  await Promise.all(servers.map((server) => once(server.close(), "close")));
  return ports;
}

class Site {
  readonly folder = mkdtempSync(join(tmpdir(), "tidegate-"));
  readonly url: string;
  readonly mqtt: number;
  readonly password: string;
  readonly #running = new Map<string, ChildProcess>();

  constructor(program: string, [api, link, mqtt]: readonly number[]) {
    assert.ok(mqtt !== undefined);
    this.mqtt = mqtt;
    this.url = `https://127.0.0.1:${api}`;
    const settings = {
      "node.api_listen": `127.0.0.1:${api}`,
      "link.listen": `127.0.0.1:${link}`,
      "link.edge": `127.0.0.1:${link}`,
      "link.reconnect_backoff_max": "500ms",
      "mqtt.listener.main.listen": `127.0.0.1:${mqtt}`,
    };
    const words = Object.entries(settings).flatMap(([key, value]) => ["--set", `${key}=${value}`]);
    const said = execFileSync(program, ["init", "--camera", "cam1", ...words], { cwd: this.folder, encoding: "utf8" });
    const found = /^\s+(\S+-\S+-\S+)$/m.exec(said);
    assert.ok(found?.[1] !== undefined, said);
    this.password = found[1];
  }

  get ca(): string {
    return readFileSync(join(this.folder, "tidegate-data/pki/ca.pem"), "utf8");
  }

  get user(): { user: string; password: string; ca: string } {
    return { user: "admin", password: this.password, ca: this.ca };
  }

  get certificate(): { ca: string; cert: string; key: string } {
    const file = (name: string): string => readFileSync(join(this.folder, "tidegate-data/pki", name), "utf8");
    return { ca: this.ca, cert: file("application.pem"), key: file("application.key") };
  }

  run(program: string, name: string, ...words: string[]): void {
    const log = openSync(join(this.folder, `${name}.log`), "a");
    this.#running.set(name, spawn(program, [name, ...words], { cwd: this.folder, stdio: ["ignore", log, log] }));
  }

  log(name: string): string {
    return readFileSync(join(this.folder, `${name}.log`), "utf8");
  }

  async kill(name: string): Promise<void> {
    const process_ = this.#running.get(name);
    this.#running.delete(name);
    if (process_ === undefined || process_.exitCode !== null) return;
    process_.kill("SIGKILL");
    await once(process_, "exit");
  }

  async stop(): Promise<void> {
    for (const name of [...this.#running.keys()]) await this.kill(name);
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** The first answer that is something; fails when there is none in time. */
async function until<T>(ask: () => Promise<T | undefined>, what: string): Promise<T> {
  const end = Date.now() + READY_MS;
  for (;;) {
    const said = await ask();
    if (said !== undefined) return said;
    assert.ok(Date.now() < end, `${what}: nothing within ${READY_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

let site: Site;
let client: Client;

const skip = PROGRAM === undefined ? "TIDEGATE_PROGRAM names no program" : false;
const options = { skip, timeout: 2 * READY_MS };

before(async () => {
  if (PROGRAM === undefined) return;
  site = new Site(PROGRAM, await freePorts(3));
  site.run(PROGRAM, "node");
  site.run(PROGRAM, "camera", "--name", "cam1", "--source", SCENE);
  client = await until(async () => {
    try {
      return await connect(site.url, site.user);
    } catch (error) {
      assert.ok(error instanceof LinkDownError, `${String(error)}\n${site.log("node")}`);
      return undefined;
    }
  }, "the node");
  await until(async () => (await client.cameras()).find((camera) => camera.online && camera.newestAtNs !== undefined), "the camera");
});

after(async () => {
  client?.close();
  await site?.stop();
});

test("the caller is known by password and by certificate, and by nothing else", options, async () => {
  assert.equal((await client.me()).name, "admin");
  const application = await connect(site.url, site.certificate);
  assert.notEqual((await application.me()).name, "admin");
  application.close();
  await assert.rejects(connect(site.url, { ...site.user, password: "wrong" }), IdentityRefusedError);
  await assert.rejects(connect(site.url, { ca: site.ca }), IdentityRefusedError);
  await assert.rejects(connect(site.url, { user: "admin", password: site.password }), IdentityRefusedError, "an authority that is not known");
});

test("frames keep their bounds, and name the original", options, async () => {
  let last = 0n;
  let count = 0;
  for await (const frame of client.frames("cam1", { latencyMs: 5000, accuracy: 0.5 })) {
    assert.ok(frame.verdict.kept, JSON.stringify(frame.verdict));
    assert.deepEqual([frame.jpeg[0], frame.jpeg[1]], [0xff, 0xd8]);
    assert.ok(frame.capturedAtNs > last);
    assert.ok(frame.size.width > 0 && frame.stages.networkMs >= 0);
    // Not every node tells it of a frame that was made smaller.
    assert.deepEqual(frame.sourceSize, { width: 640, height: 360 });
    last = frame.capturedAtNs;
    if (++count === 5) break;
  }
  const original = await client.snapshot("cam1", last);
  assert.equal(original.capturedAtNs, last);
  assert.deepEqual([original.jpeg[0], original.jpeg[1]], [0xff, 0xd8]);
  await assert.rejects(client.snapshot("cam1", 1n), FrameMissingError);
  await assert.rejects(client.frames("cam9").next(), { code: "frames.camera.unknown" });
});

test("a stream comes back behind a node that was killed", options, async () => {
  const told: string[] = [];
  const stream = client.frames("cam1", { latencyMs: 5000, accuracy: 0.5, onEvent: (event) => told.push(event.type) });
  const { value: first } = await stream.next();
  assert.ok(first !== undefined);
  await site.kill("node");
  await until(async () => (stream.offline === undefined ? undefined : true), "the outage");
  site.run(PROGRAM as string, "node");
  // Frames that waited in the queue as the node was killed come first.
  await until(async () => {
    const { value: frame } = await stream.next();
    assert.ok(frame !== undefined && frame.capturedAtNs > first.capturedAtNs);
    return told.includes("camera-online") ? frame : undefined;
  }, "a frame");
  stream.close();
});

test("detections come as they are published", options, async () => {
  const stream = client.detections({ camera: "cam1" });
  const next = stream.next();
  const box = [1, 2, 3, 4, 0.9, "person"];
  const size = { width: 640, height: 360 };
  const at = 1_750_000_000_123_456_789n;
  const publish = (camera: string): void => {
    const told = { type: "detection", detector: "people", camera, source: size, frame: size, boxes: [box], kept: true };
    const message = JSON.stringify(told).replace(/}$/, `,"captured_at":${at}}`);
    const broker = ["-p", `${site.mqtt}`, "-u", "admin", "-q", "1"];
    const env = { ...process.env, TIDEGATE_PASSWORD: site.password };
    execFileSync(PROGRAM as string, ["pub", ...broker, "-t", `detections/${camera}/people`, "-m", message], { cwd: site.folder, env });
  };
  // The WebSocket opens at some time after it was asked for.
  let detection: Awaited<typeof next> | undefined;
  void next.then((found) => (detection = found));
  await until(async () => {
    publish("cam2");
    publish("cam1");
    await new Promise((resolve) => setTimeout(resolve, 50));
    return detection;
  }, "a detection");
  const { value: found } = await next;
  assert.deepEqual([found?.camera, found?.detector, found?.capturedAtNs, found?.source], ["cam1", "people", at, size]);
  assert.deepEqual(found?.boxes, [{ left: 1, top: 2, right: 3, bottom: 4, score: 0.9, label: "person" }]);
  stream.close();
});

test("an image is looked at, by a request and over a connection that stays", options, async () => {
  const { jpeg } = await client.snapshot("cam1");
  const found = await client.detect(jpeg, "face");
  assert.deepEqual([found.model, found.image], ["face", { width: 640, height: 360 }]);
  assert.ok(found.times.totalMs > 0);
  const detector = client.detector("face", { inFlight: 4, waiting: 8 });
  const all = await Promise.all(Array.from({ length: 8 }, () => detector.detect(jpeg)));
  assert.ok(all.every((each) => each.image.width === 640));
  await assert.rejects(client.detect(new Uint8Array([0x25, 0x50, 0x44, 0x46]), "face"), ImageRefusedError);
  await assert.rejects(detector.detect(jpeg.subarray(0, 200)), ImageRefusedError);
  await assert.rejects(client.detect(jpeg, "no-such-model"), ModelUnknownError);
  await assert.rejects(client.detector("no-such-model").detect(jpeg), ModelUnknownError);
});

test("the example says what it sees", options, async () => {
  const example = join(import.meta.dirname, "../../examples/verdicts.mjs");
  const said = execFileSync(process.execPath, [example, site.url, "cam1", join(site.folder, "tidegate-data/pki"), "5"], { encoding: "utf8" });
  assert.match(said, /5 of 5 frames kept both bounds/);
});
