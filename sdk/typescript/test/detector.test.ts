/** A connection to a model that stays, against a fake node. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import type { WebSocket } from "ws";

import { connect, ImageRefusedError, LimitReachedError, LinkDownError, ModelUnknownError, type Client } from "../src/index.js";
import { FakeNode, found, json, poll, USER } from "./fake_node.js";

const PATH = "/v1/detect/face";
const QUICK = { retries: { max: 5, waitMs: 1, waitMaxMs: 5 } };

interface Request {
  readonly socket: WebSocket;
  readonly id: number;
  readonly image: Buffer;
}

/** A fake node that keeps what it is asked, for a test to answer. */
async function site(t: TestContext): Promise<{ node: FakeNode; client: Client; requests: Request[] }> {
  const node = await FakeNode.start();
  const client = await connect(node.url, { ...USER, ...QUICK });
  const requests: Request[] = [];
  node.sockets.set(PATH, (socket, query) => {
    assert.equal(query.get("ids"), "1");
    socket.on("message", (data: Buffer) => requests.push({ socket, id: Number(data.readBigUInt64BE(0)), image: data.subarray(8) }));
  });
  t.after(async () => {
    client.close();
    await node.stop();
  });
  return { node, client, requests };
}

function answer({ socket, id, image }: Request): void {
  socket.send(json(found(image, { id })));
}

function image(bytes: number): Uint8Array {
  return new Uint8Array(bytes);
}

test("many images are under way, and each has its own answer", { timeout: 20_000 }, async (t) => {
  const { client, requests } = await site(t);
  const detector = client.detector("face", { inFlight: 3, waiting: 8 });
  const widths = Promise.all([1, 2, 3, 4, 5].map(async (bytes) => (await detector.detect(image(bytes))).boxes[0]?.right));
  await poll(() => requests.length === 3);
  assert.equal(detector.inFlight, 3);
  answer(requests[2] as Request);
  answer(requests[0] as Request);
  await poll(() => requests.length === 5);
  for (const place of [4, 3, 1]) answer(requests[place] as Request);
  assert.deepEqual(await widths, [2, 3, 4, 5, 6]);
  assert.equal(detector.skipped, 0);
});

test("newer images take the place of those that wait", { timeout: 20_000 }, async (t) => {
  const { client, requests } = await site(t);
  const detector = client.detector("face", { inFlight: 1, waiting: 1 });
  const first = detector.detect(image(1));
  await poll(() => requests.length === 1);
  const second = detector.detect(image(2));
  const third = detector.detect(image(3));
  await assert.rejects(second, (error) => error instanceof LimitReachedError && error.code === "sdk.overtaken");
  answer(requests[0] as Request);
  await first;
  await poll(() => requests.length === 2);
  answer(requests[1] as Request);
  assert.equal((await third).boxes[0]?.right, 4);
  assert.equal(detector.skipped, 1);
});

test("an image whose connection broke is sent once more, and not again", { timeout: 20_000 }, async (t) => {
  const { node, client, requests } = await site(t);
  const detector = client.detector("face");
  const one = detector.detect(image(1));
  const two = detector.detect(image(2));
  await poll(() => requests.length === 2);
  node.cut();
  await poll(() => requests.length === 4);
  assert.deepEqual(requests.slice(2).map((request) => request.image.byteLength), [1, 2], "in their order");
  answer(requests[2] as Request);
  await one;
  node.cut();
  await assert.rejects(two, LinkDownError);
  const three = detector.detect(image(3));
  await poll(() => requests.length === 5);
  answer(requests[4] as Request);
  await three;
});

test("a node that is full says so to all that wait, and is asked again by the next", { timeout: 20_000 }, async (t) => {
  const { client, requests } = await site(t);
  const detector = client.detector("face");
  const asked = [detector.detect(image(1)), detector.detect(image(2))];
  await poll(() => requests.length === 2);
  requests[0]?.socket.close(1013, "the queue of the workers is full");
  for (const each of asked) await assert.rejects(each, (error) => error instanceof LimitReachedError && error.message.includes("full"));
  const next = detector.detect(image(3));
  await poll(() => requests.length === 3);
  answer(requests[2] as Request);
  await next;
});

test("an image that is refused is alone", { timeout: 20_000 }, async (t) => {
  const { client, requests } = await site(t);
  const detector = client.detector("face");
  const bad = detector.detect(image(1));
  const good = detector.detect(image(2));
  await poll(() => requests.length === 2);
  requests[0]?.socket.send(json({ id: requests[0].id, error: { code: "vision.image.invalid", message: "it is cut off" } }));
  requests[0]?.socket.send(json({ id: 99, error: { code: "vision.image.invalid", message: "of nobody" } }));
  answer(requests[1] as Request);
  await assert.rejects(bad, (error) => error instanceof ImageRefusedError && error.message === "it is cut off");
  await good;
});

test("no answer in time fails that call alone", { timeout: 20_000 }, async (t) => {
  const { client, requests } = await site(t);
  const detector = client.detector("face", { inFlight: 1, waiting: 1, timeoutMs: 100 });
  const first = detector.detect(image(1));
  await poll(() => requests.length === 1);
  await assert.rejects(first, (error) => error instanceof LinkDownError && error.message.includes("100 ms"));
  const second = detector.detect(image(2));
  await poll(() => requests.length === 2);
  // The late answer of the first one is nobody's.
  answer(requests[0] as Request);
  answer(requests[1] as Request);
  assert.equal((await second).boxes[0]?.right, 3);
});

test("a model that is not there, a node that is not there, and a detector that is closed", { timeout: 20_000 }, async (t) => {
  const { node, client, requests } = await site(t);
  await assert.rejects(client.detector("cat").detect(image(1)), (error) => error instanceof ModelUnknownError && error.message.includes("person"));
  assert.throws(() => client.detector("face", { inFlight: 0 }), { code: "config.invalid" });
  assert.throws(() => client.detector("face", { waiting: 1000 }), { code: "config.invalid" });
  assert.throws(() => client.detector("face", { timeoutMs: 0 }), { code: "config.invalid" });
  const detector = client.detector("face");
  const under = detector.detect(image(1));
  await poll(() => requests.length === 1);
  detector.close();
  await assert.rejects(under, { code: "sdk.closed" });
  await assert.rejects(detector.detect(image(1)), { code: "sdk.closed" });
  await poll(() => requests[0]?.socket.readyState === 3);
  await node.stop();
  await assert.rejects(client.detector("face").detect(image(1)), LinkDownError);
});

test("an answer that is none ends the connection and fails its calls", { timeout: 20_000 }, async (t) => {
  const { client, requests } = await site(t);
  const detector = client.detector("face");
  for (const text of ["{", '{"id": 1}', "[]"]) {
    const before = requests.length;
    const asked = detector.detect(image(1));
    await poll(() => requests.length === before + 1);
    const request = requests[before] as Request;
    request.socket.send(text.replace("1", `${request.id}`));
    await assert.rejects(asked, { code: "link.protocol" }, text);
  }
});
