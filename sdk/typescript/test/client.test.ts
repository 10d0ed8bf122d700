/** Requests of HTTP, against a fake node. */

import assert from "node:assert/strict";
import * as http from "node:http";
import { test } from "node:test";

import {
  ActionDeniedError,
  connect,
  FrameMissingError,
  IdentityRefusedError,
  ImageRefusedError,
  LimitReachedError,
  LinkDownError,
  ModelUnknownError,
} from "../src/index.js";
import { AT, failure, FakeNode, found, picture, TOKEN, USER } from "./fake_node.js";

test("a caller is who it says, or is refused", async (t) => {
  const node = await FakeNode.start();
  t.after(() => node.stop());
  for (const proof of [USER, TOKEN]) {
    const client = await connect(node.url, proof);
    const me = await client.me();
    assert.deepEqual([me.name, me.kind, me.node, me.admin], ["ada", "user", "edge", false]);
    assert.equal(me.until?.getTime(), Number(AT / 1_000_000n) + 3_600_000);
    client.close();
    await assert.rejects(client.me(), { code: "sdk.closed" });
  }
  for (const proof of [{}, { user: "ada", password: "wrong" }, { token: "bad" }]) {
    await assert.rejects(connect(node.url, proof), (error) => error instanceof IdentityRefusedError && error.code === "auth.identity.refused");
  }
});

test("no node is a link that is down", async () => {
  const node = await FakeNode.start();
  const { url } = node;
  await node.stop();
  await assert.rejects(connect(url, USER), (error) => error instanceof LinkDownError && error.message.includes("ECONNREFUSED"));
});

test("cameras and their pictures, by the nanosecond", async (t) => {
  const node = await FakeNode.start();
  t.after(() => node.stop());
  const client = await connect(node.url, USER);
  t.after(() => client.close());
  const cameras = await client.cameras();
  assert.deepEqual(
    cameras.map((camera) => [camera.name, camera.online, camera.newestAtNs, camera.size?.width, camera.captureClock, camera.noFrames]),
    [
      ["cam1", true, AT, 640, "its timestamps leap about", ""],
      ["cam2", false, AT, 640, "", ""],
    ],
  );
  const newest = await client.snapshot("cam1");
  assert.equal(newest.capturedAtNs, AT);
  assert.equal(newest.capturedAt.getTime(), Number(AT / 1_000_000n));
  assert.deepEqual(Buffer.from(newest.jpeg), picture(0));
  assert.equal((await client.snapshot("cam1", AT - 1n)).capturedAtNs, AT - 1n);
  await assert.rejects(client.snapshot("cam1", 1n), (error) => error instanceof FrameMissingError && error.code === "frames.frame.missing");
  await assert.rejects(client.snapshot("cam1", undefined, AbortSignal.abort(new Error("no more"))), /no more/);
});

test("an image goes to a model as it is", async (t) => {
  const node = await FakeNode.start();
  t.after(() => node.stop());
  const client = await connect(node.url, USER);
  t.after(() => client.close());
  const types: (string | undefined)[] = [];
  node.answers.set("POST /v1/detect/face", (asked) => {
    types.push(asked.headers["content-type"]);
    return { json: found(asked.body) };
  });
  const jpeg = new Uint8Array([0xff, 0xd8, 1]);
  const png = new Uint8Array([0x89, 0x50, 1, 2]);
  for (const image of [jpeg, png, jpeg.buffer, new Blob([png], { type: "image/png" })]) {
    const detections = await client.detect(image, "face");
    const size = image instanceof Blob ? image.size : image.byteLength;
    assert.deepEqual(detections.boxes, [{ left: 1, top: 2, right: 1 + size, bottom: 40, score: 0.9, label: "face" }]);
    assert.deepEqual(detections.image, { width: 640, height: 480 });
    assert.deepEqual(detections.classes, [{ label: "street", score: 0.8 }]);
    assert.deepEqual(detections.poses, [[{ x: 1, y: 2, score: 0.5 }]]);
    assert.deepEqual(detections.times, { queueMs: 1, decodeMs: 2, inferMs: 3, totalMs: 6 });
  }
  assert.deepEqual(types, ["image/jpeg", "image/png", "image/jpeg", "image/png"]);
  assert.deepEqual(await client.models(), ["face", "person"]);
});

test("each failure of a detection is told by its class", async (t) => {
  const node = await FakeNode.start();
  t.after(() => node.stop());
  const client = await connect(node.url, USER);
  t.after(() => client.close());
  for (const [reply, kind, text] of [
    [failure(429, "limit.reached", "the queue is full", { "retry-after": "2" }), LimitReachedError, /full/],
    [failure(404, "vision.model.unknown", "there are face, person"), ModelUnknownError, /person/],
    [failure(422, "vision.image.invalid", "it is cut off"), ImageRefusedError, /cut off/],
    [failure(403, "auth.action.denied", "not you"), ActionDeniedError, /not you/],
    [{ status: 502, bytes: Buffer.from("<html>") }, LinkDownError, /502/],
  ] as const) {
    node.answers.set("POST /v1/detect/face", () => reply);
    const failed = await client.detect(new Uint8Array([1]), "face").catch((error: unknown) => error);
    assert.ok(failed instanceof kind && text.test(failed.message), `${String(failed)}`);
    if (failed instanceof LimitReachedError) assert.equal(failed.retryAfterMs, 2000);
  }
  node.answers.set("POST /v1/detect/face", () => ({ bytes: Buffer.from("no JSON") }));
  await assert.rejects(client.detect(new Uint8Array([1]), "face"), { code: "link.protocol" });
});

test("a kept connection that the node closed is no failure", async (t) => {
  // The second request of a connection gets no answer, as of a server that has just closed it.
  const server = http.createServer({ keepAlive: true });
  const node = await FakeNode.start(server);
  t.after(() => node.stop());
  const client = await connect(node.url, USER);
  t.after(() => client.close());
  let asked = 0;
  node.answers.set("GET /cameras", () => {
    if (++asked === 1) node.cut();
    return { json: { cameras: [] } };
  });
  assert.deepEqual(await client.cameras(), []);
  assert.equal(asked, 2);
});
