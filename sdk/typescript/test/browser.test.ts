/** The side of the SDK that runs in browsers: its transport by itself, and the whole package in Debian's Chromium. */

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { WebSocket } from "ws";

import { Client, InvalidRequestError, LinkDownError } from "../src/index.js";
import { addressOf, BrowserTransport } from "../src/transport.js";
import { FakeNode, found, json, picture, sendEvent, sendFrame, USER } from "./fake_node.js";

const DIST = resolve(dirname(fileURLToPath(import.meta.url)), "../../dist");

test("fetch and a WebSocket are all that it needs", { timeout: 20_000 }, async (t) => {
  // Node.js 20 has no WebSocket of its own; this one has the same methods.
  if (!("WebSocket" in globalThis)) Object.assign(globalThis, { WebSocket });
  const node = await FakeNode.start();
  node.isOpen = true;
  const transport = new BrowserTransport(addressOf(node.url), {});
  const client = new Client(addressOf(node.url), transport, { max: 2, waitMs: 1, waitMaxMs: 1 });
  t.after(async () => {
    client.close();
    await node.stop();
  });
  node.sockets.set("/cameras/cam1/frames", (socket) => {
    sendEvent(socket, { type: "started" });
    sendFrame(socket, 1);
  });
  node.sockets.set("/v1/detect/face", (socket) => {
    socket.on("message", (data: Buffer) => socket.send(json(found(data.subarray(8), { id: Number(data.readBigUInt64BE(0)) }))));
  });
  await client.login(USER);
  assert.equal((await client.cameras())[0]?.name, "cam1");
  assert.deepEqual(Buffer.from((await client.snapshot("cam1")).jpeg), picture(0));
  const stream = client.frames("cam1");
  assert.deepEqual(Buffer.from((await stream.next()).value?.jpeg ?? []), picture(1));
  assert.equal((await client.detect(new Blob([new Uint8Array(4)]), "face")).boxes[0]?.right, 5);
  const detector = client.detector("face");
  assert.equal((await detector.detect(new Uint8Array(6))).boxes[0]?.right, 7);
  // A browser does not say why a WebSocket was refused, so the reason is asked for.
  await assert.rejects(client.frames("cam9").next(), { code: "frames.camera.unknown", message: /cam1, cam2/ });
  await assert.rejects(client.detector("cat").detect(new Uint8Array(1)), { code: "vision.model.unknown", message: /face, person/ });
  await assert.rejects(client.snapshot("cam1", 1n), { code: "frames.frame.missing" });
  await client.logout().catch((error: unknown) => assert.ok(error instanceof Error));
  await node.stop();
  await assert.rejects(client.cameras(), LinkDownError);
  assert.throws(() => new BrowserTransport(addressOf("edge"), { ca: "x" }), InvalidRequestError);
});

function chromium(): string | undefined {
  for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
    try {
      return execFileSync("sh", ["-c", `command -v ${name}`], { encoding: "utf8" }).trim();
    } catch {
      continue;
    }
  }
  return undefined;
}

const PAGE = `<!doctype html><script type="module">
  const said = { frames: [] };
  try {
    const { connect } = await import("/public/index.js");
    const node = await connect(location.origin, { user: "ada", password: "secret" });
    said.cameras = (await node.cameras()).map((camera) => camera.name);
    for await (const frame of node.frames("cam1", { queue: 8 })) {
      said.frames.push([String(frame.capturedAtNs), new TextDecoder().decode(frame.jpeg), frame.verdict.kept]);
      if (said.frames.length === 2) break;
    }
    const detector = node.detector("face");
    said.right = (await detector.detect(new Blob([new Uint8Array(4)]))).boxes[0].right;
    said.error = await node.frames("cam9").next().catch((error) => error.code);
    node.close();
  } catch (error) { said.failed = String(error); }
  await fetch("/public/said", { method: "POST", body: JSON.stringify(said) });
</script>`;

const browser = chromium();

test("a page uses it with the cookie of its session", { timeout: 60_000, skip: browser === undefined ? "Chromium is not installed" : false }, async (t) => {
  const node = await FakeNode.start();
  const folder = mkdtempSync(join(tmpdir(), "tidegate-"));
  node.answers.set("GET /public/", () => ({ bytes: Buffer.from(PAGE), headers: { "content-type": "text/html" } }));
  for (const name of readdirSync(DIST).filter((each) => each.endsWith(".js"))) {
    node.answers.set(`GET /public/${name}`, () => ({ bytes: readFileSync(join(DIST, name)), headers: { "content-type": "text/javascript" } }));
  }
  let said = "";
  node.answers.set("POST /public/said", (asked) => {
    said = asked.body.toString();
    return {};
  });
  node.sockets.set("/cameras/cam1/frames", (socket) => {
    sendEvent(socket, { type: "started" });
    sendFrame(socket, 1);
    sendFrame(socket, 2);
  });
  node.sockets.set("/v1/detect/face", (socket) => {
    socket.on("message", (data: Buffer) => socket.send(json(found(data.subarray(8), { id: Number(data.readBigUInt64BE(0)) }))));
  });
  const quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
  const arguments_ = ["--headless", "--no-sandbox", ...quiet, `--user-data-dir=${folder}`, "--remote-debugging-port=0", `${node.url}/public/`];
  // In a process group of its own, which ends as a whole: its children write to the folder for a while after it.
  const process_ = spawn(browser as string, arguments_, { stdio: "ignore", detached: true });
  t.after(async () => {
    process_.kill("SIGTERM");
    if (process_.exitCode === null && process_.signalCode === null) await once(process_, "exit");
    await node.stop();
    try {
      process.kill(-(process_.pid as number), "SIGKILL");
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
    }
    rmSync(folder, { recursive: true, force: true, maxRetries: 50, retryDelay: 20 });
  });
  const end = Date.now() + 45_000;
  while (said === "" && Date.now() < end) await new Promise((done) => setTimeout(done, 50));
  const told = JSON.parse(said) as { cameras: string[]; frames: unknown[]; right: number; error: string; failed?: string };
  assert.equal(told.failed, undefined);
  assert.deepEqual(told.cameras, ["cam1", "cam2"]);
  assert.deepEqual(told.frames, [
    ["1750000000223456789", "picture 1", true],
    ["1750000000323456789", "picture 2", true],
  ]);
  assert.equal(told.right, 5);
  assert.equal(told.error, "frames.camera.unknown");
  assert.ok(!node.log.includes("GET /public/transport_node.js"), "a browser does not load the side of Node.js");
});
