/** Cameras of other nodes, to which a client goes: fake nodes with certificates of one authority. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import * as https from "node:https";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test, type TestContext } from "node:test";

import { CAMERAS_MAX } from "../src/elsewhere.js";
import { CameraElsewhereError, connect, IdentityRefusedError, LinkDownError, type Client, type ConnectOptions } from "../src/index.js";
import { AT, failure, FakeNode, picture, poll, sendEvent, sendFrame, TOKEN } from "./fake_node.js";

const NAME = "node.tidegate.internal";
const SNAPSHOT = "GET /cameras/cam1/snapshot.jpg";

/** Signs the certificates of nodes. */
class Authority {
  readonly #folder = mkdtempSync(join(tmpdir(), "tidegate-"));

  constructor() {
    const openssl = (...words: string[]): unknown => execFileSync("openssl", words, { cwd: this.#folder, stdio: "ignore" });
    const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    after(() => rmSync(this.#folder, { recursive: true }));
    openssl("req", "-x509", ...key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=site", "-days", "1");
    writeFileSync(join(this.#folder, "names"), `subjectAltName=DNS:${NAME}`);
    openssl("req", ...key, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node");
    openssl("x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "node.pem", "-days", "1", "-extfile", "names");
  }

  file(name: string): string {
    return readFileSync(join(this.#folder, name), "utf8");
  }
}

/** One for the tests; undefined where openssl is not installed. */
function authority(): Authority | undefined {
  try {
    execFileSync("openssl", ["version"], { stdio: "ignore" });
  } catch {
    return undefined;
  }
  return new Authority();
}

const SITE = authority();
const HOW = { timeout: 60_000, skip: SITE === undefined ? "openssl is not installed" : false };

/** A node of that name, whose picture and frames of `cam1` say which node sent them. */
async function nodeOf(t: TestContext, name: string, of = SITE as Authority): Promise<FakeNode> {
  const node = await FakeNode.start(https.createServer({ key: of.file("node.key"), cert: of.file("node.pem") }));
  t.after(() => node.stop());
  node.answers.set("GET /v1/me", () => ({ json: { name: "ada", kind: "user", until: null, admin: false, node: name, version: "0.1.0" } }));
  serves(node, name);
  return node;
}

function serves(node: FakeNode, name: string, camera = "cam1"): void {
  node.elsewhere.delete(camera);
  node.answers.set(`GET /cameras/${camera}/snapshot.jpg`, () => ({ bytes: Buffer.from(name), headers: { "tidegate-captured-at": `${AT}` } }));
}

function addressOf(node: FakeNode): string {
  return `127.0.0.1:${node.port}`;
}

function says(node: FakeNode, name: string, ...addresses: string[]): void {
  node.elsewhere.set("cam1", { node: name, addresses });
}

async function nowhere(): Promise<string> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return `127.0.0.1:${port}`;
}

async function clientOf(t: TestContext, node: FakeNode, more: ConnectOptions = {}): Promise<Client> {
  const client = await connect(`https://${addressOf(node)}`, { ca: (SITE as Authority).file("ca.pem"), serverName: NAME, ...TOKEN, ...more });
  t.after(() => client.close());
  return client;
}

/** Two nodes; the first says that `cam1` is at the second. */
async function pair(t: TestContext): Promise<[FakeNode, FakeNode]> {
  const [edge, yard] = [await nodeOf(t, "edge"), await nodeOf(t, "yard")];
  says(edge, "yard", await nowhere(), addressOf(yard));
  return [edge, yard];
}

async function sender(client: Client): Promise<string> {
  return Buffer.from((await client.snapshot("cam1")).jpeg).toString();
}

function count(node: FakeNode, what: string): number {
  return node.log.filter((each) => each === what).length;
}

test("a picture of a camera of another node comes from there, and that is remembered", HOW, async (t) => {
  const [edge, yard] = await pair(t);
  const client = await clientOf(t, edge);
  assert.deepEqual([await sender(client), await sender(client)], ["yard", "yard"]);
  assert.deepEqual([count(edge, SNAPSHOT), count(yard, SNAPSHOT)], [1, 2]);
  assert.equal((await client.cameras()).length, 2, "those of the node");
  assert.deepEqual([count(edge, "GET /cameras"), count(yard, "GET /cameras")], [1, 0]);
});

test("a stream is read and changed at the node that serves the camera, and goes with it", HOW, async (t) => {
  const [edge, yard] = await pair(t);
  const hall = await nodeOf(t, "hall");
  const updates: string[] = [];
  for (const [number, node] of [[1, yard], [2, hall]] as const) {
    node.sockets.set("/cameras/cam1/frames", (socket) => {
      sendEvent(socket, { type: "started" });
      sendFrame(socket, number);
      socket.on("message", (text: Buffer) => updates.push(`${number} ${text.toString()}`));
    });
  }
  const client = await clientOf(t, edge, { retries: { waitMs: 1 } });
  const frames = client.frames("cam1");
  assert.deepEqual(Buffer.from((await frames.next()).value?.jpeg ?? []), picture(1));
  frames.update({ latencyMs: 50 });
  await poll(() => updates.length === 1);
  assert.match(updates[0] as string, /^1 .*"latency_ms":50/);
  says(edge, "hall", addressOf(hall));
  await yard.stop();
  assert.deepEqual(Buffer.from((await frames.next()).value?.jpeg ?? []), picture(2));
  frames.close();
});

test("a node that has the camera no longer, or is gone, is forgotten", HOW, async (t) => {
  const [edge, yard] = await pair(t);
  const client = await clientOf(t, edge);
  assert.equal(await sender(client), "yard");
  serves(edge, "edge");
  says(yard, "edge", addressOf(edge));
  assert.deepEqual([await sender(client), await sender(client)], ["edge", "edge"]);
  assert.deepEqual([count(edge, SNAPSHOT), count(yard, SNAPSHOT)], [3, 2]);
  serves(yard, "yard");
  says(edge, "yard", addressOf(yard));
  assert.equal(await sender(client), "yard");
  await yard.stop();
  serves(edge, "edge");
  assert.equal(await sender(client), "edge");
});

test("a second step finds a camera that moved, and a third is not made", HOW, async (t) => {
  const [edge, yard] = await pair(t);
  const hall = await nodeOf(t, "hall");
  says(yard, "hall", addressOf(hall));
  const client = await clientOf(t, edge);
  assert.deepEqual([await sender(client), await sender(client)], ["hall", "hall"]);
  assert.deepEqual([edge, yard, hall].map((node) => count(node, SNAPSHOT)), [1, 1, 2]);
  says(hall, "edge", addressOf(edge));
  await assert.rejects(sender(client), (error) => {
    assert.ok(error instanceof CameraElsewhereError && error.node === "edge", String(error));
    return error.message.includes("in 2 steps: node hall says");
  });
  assert.equal(count(edge, SNAPSHOT), 2);
});

test("a place that cannot be trusted or reached is refused with both names", HOW, async (t) => {
  const [edge, yard] = await pair(t);
  const stranger = await nodeOf(t, "yard", new Authority());
  const plain = await FakeNode.start();
  t.after(() => plain.stop());
  const client = await clientOf(t, edge);
  for (const [name, addresses, kind, why] of [
    ["yard", [addressOf(stranger)], IdentityRefusedError, "certificate"],
    ["yard", [addressOf(stranger), await nowhere()], IdentityRefusedError, "certificate"],
    ["shed", [addressOf(yard)], LinkDownError, "node yard answers"],
    ["yard", [await nowhere()], LinkDownError, "ECONNREFUSED"],
    ["edge", [addressOf(plain)], LinkDownError, "not reached"],
    ["yard", ["x/y"], LinkDownError, "is no address"],
  ] as const) {
    says(edge, name, ...addresses);
    await assert.rejects(sender(client), (error) => {
      const text = String(error);
      assert.ok(error instanceof kind, text);
      assert.ok(text.includes(`${addressOf(edge)} says that camera cam1 is at node ${name}`) && text.includes(why), text);
      return true;
    });
  }
  says(edge, "yard");
  await assert.rejects(sender(client), (error) => error instanceof CameraElsewhereError);
  assert.deepEqual([stranger.log, plain.log, count(yard, SNAPSHOT)], [[], [], 0]);
});

test("a client that is not to follow, or has come without TLS, is told the place", HOW, async (t) => {
  const [edge, yard] = await pair(t);
  const plain = await FakeNode.start();
  t.after(() => plain.stop());
  says(plain, "yard", addressOf(yard));
  const unencrypted = await connect(plain.url, TOKEN);
  t.after(() => unencrypted.close());
  for (const client of [await clientOf(t, edge, { follow: false }), unencrypted]) {
    for (const asked of [() => sender(client), () => client.frames("cam1").next()]) {
      await assert.rejects(asked, (error) => error instanceof CameraElsewhereError && error.node === "yard");
    }
  }
  assert.deepEqual(yard.log, []);
});

test("of many cameras those that were asked for last are remembered", HOW, async (t) => {
  const [edge, yard] = await pair(t);
  const client = await clientOf(t, edge);
  const names = Array.from({ length: CAMERAS_MAX + 1 }, (_, number) => `many${number}`);
  for (const name of names) {
    edge.elsewhere.set(name, { node: "yard", addresses: [addressOf(yard)] });
    serves(yard, "yard", name);
    await client.snapshot(name);
  }
  const before = edge.log.length;
  for (const name of [names[1], names.at(-1)]) await client.snapshot(name as string);
  assert.equal(edge.log.length, before);
  await client.snapshot(names[0] as string);
  assert.equal(edge.log.length, before + 1);
});

test("a request that another failure ends says so as without another node", HOW, async (t) => {
  const [edge, yard] = await pair(t);
  yard.answers.set(SNAPSHOT, () => failure(404, "frames.frame.missing", "the log begins later"));
  await assert.rejects(sender(await clientOf(t, edge)), { code: "frames.frame.missing", message: "the log begins later" });
});
