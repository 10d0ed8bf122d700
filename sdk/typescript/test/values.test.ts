/** Values, without a node. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { CameraElsewhereError, connect, Frame, InvalidRequestError, LimitReachedError, LinkDownError, TidegateError } from "../src/index.js";
import { ofAnswer, ofClose } from "../src/errors.js";
import { fields, nanos, parse } from "../src/json.js";
import { NewestQueue } from "../src/queue.js";
import { RETRIES, waitMs } from "../src/retries.js";
import { addressOf, failureOf, isLoopback, type Answer } from "../src/transport.js";

test("whole numbers of any size are kept exactly, and nothing else is touched", () => {
  const told = fields(parse('{"at": 1750000000123456789, "text": "1750000000123456789 \\" 1", "part": 0.1750000000123456789, "small": 7}'), "text");
  assert.equal(nanos(told["at"]), 1_750_000_000_123_456_789n);
  assert.equal(told["text"], '1750000000123456789 " 1');
  assert.equal(told["part"], 0.1750000000123456789);
  assert.equal(nanos(told["small"]), 7n);
  assert.equal(nanos(undefined), undefined);
  assert.equal(nanos("12:30"), undefined);
  assert.throws(() => parse("{"), { code: "link.protocol" });
  assert.throws(() => fields(parse("[1]"), "a list"), { code: "link.protocol", message: /a list that is no object/ });
});

test("an address has port 7080 and TLS unless it says otherwise", () => {
  for (const [given, expected] of [
    ["edge.example", "https://edge.example:7080/"],
    ["edge.example:443", "https://edge.example/"],
    ["https://[::1]:9", "https://[::1]:9/"],
    ["https://edge.example/", "https://edge.example:7080/"],
    ["http://127.0.0.1:80", "http://127.0.0.1/"],
  ] as const) {
    assert.equal(addressOf(given).href, expected, given);
  }
  for (const given of ["ftp://edge", "https://edge/path", "https://ada:secret@edge", "https://edge?x=1", "https://", "a b"]) {
    assert.throws(() => addressOf(given), InvalidRequestError, given);
  }
  assert.ok(isLoopback(addressOf("127.9.0.1")) && isLoopback(addressOf("https://[::1]")) && !isLoopback(addressOf("127.evil.example")));
});

test("a request that can never work is refused before anything is sent", async () => {
  for (const [url, options, text] of [
    ["edge", { token: "t", user: "ada", password: "p" }, /one of them/],
    ["edge", { user: "ada" }, /go together/],
    ["edge", { user: "a:b", password: "p" }, /user name/],
    ["edge", { cert: "c" }, /go together/],
    ["edge", { token: "a b" }, /token/],
    ["edge", { retries: { max: -1 } }, /below 0/],
    ["http://edge:80", { user: "ada", password: "p" }, /without TLS/],
    ["nowhere://edge", {}, /no address/],
  ] as const) {
    await assert.rejects(connect(url, options), (error) => error instanceof InvalidRequestError && text.test(error.message), `${text}`);
  }
});

test("a failure has the class of its way out and the node's code", () => {
  for (const [status, code, name] of [
    [404, "frames.camera.unknown", "CameraUnknownError"],
    [404, "frames.frame.missing", "FrameMissingError"],
    [404, "vision.model.unknown", "ModelUnknownError"],
    [415, "vision.image.type", "ImageRefusedError"],
    [421, "frames.camera.elsewhere", "CameraElsewhereError"],
    [503, "vision.detector.unavailable", "DetectorFailedError"],
    [403, "auth.action.denied", "ActionDeniedError"],
    [401, undefined, "IdentityRefusedError"],
    [502, undefined, "LinkDownError"],
    [418, undefined, "TidegateError"],
    [400, "some.newer.code", "InvalidRequestError"],
  ] as const) {
    const error = ofAnswer(status, code, "text");
    assert.equal(error.name, name);
    assert.ok(error instanceof TidegateError && (code === undefined || error.code === code));
  }
  const full = ofAnswer(429, "limit.reached", "full", 2000);
  assert.ok(full instanceof LimitReachedError && full.retryAfterMs === 2000);
  assert.ok(ofClose(1013, "busy") instanceof LimitReachedError);
  assert.ok(ofClose(1006, "") instanceof LinkDownError);
  assert.equal(ofClose(1002, "").code, "link.protocol");
});

test("a camera at another node is a failure that names the node", () => {
  const answer = (error: unknown): Answer => ({
    status: 421,
    header: () => undefined,
    body: new TextEncoder().encode(JSON.stringify({ error })),
  });
  const code = "frames.camera.elsewhere";
  const failure = failureOf(answer({ code, message: "it is away", node: "yard", addresses: ["10.0.0.7:7080"] }), "a call");
  assert.ok(failure instanceof CameraElsewhereError);
  assert.deepEqual([failure.code, failure.node, failure.addresses], [code, "yard", ["10.0.0.7:7080"]]);
  const bare = failureOf(answer({ code, message: "it is away" }), "a call");
  assert.ok(bare instanceof CameraElsewhereError && bare.node === undefined && bare.addresses.length === 0);
});

test("a queue lets the oldest go, keeps what may not go, and ends with its reason once", async () => {
  const queue = new NewestQueue<number | string>(2);
  for (const item of [1, "a", 2, 3, "b", 4]) queue.push(item, typeof item === "number");
  assert.equal(queue.skipped, 2);
  queue.end(new Error("why"));
  queue.push(5, true);
  const got = [];
  for (let count = 0; count < 4; count++) got.push((await queue.next()).value);
  assert.deepEqual(got, ["a", 3, "b", 4]);
  await assert.rejects(queue.next(), /why/);
  assert.deepEqual(await queue.next(), { done: true, value: undefined });

  const waiting = new NewestQueue<number>(1);
  const next = waiting.next();
  await assert.rejects(waiting.next(), TypeError);
  waiting.push(1, true);
  assert.equal((await next).value, 1);
  const last = waiting.next();
  waiting.clear();
  assert.deepEqual(await last, { done: true, value: undefined });

  const kept = new NewestQueue<number>(1);
  for (let count = 0; count < 1000; count++) kept.push(count, false);
  assert.equal(kept.skipped, 1000 - 256);
});

test("waits double up to their limit", () => {
  assert.deepEqual([0, 1, 2, 6, 100].map((tries) => waitMs(RETRIES, tries)), [100, 200, 400, 5000, 5000]);
});

test("a frame has a verdict, and brings boxes to its original", () => {
  const told = { captured_at: 1, epoch: 1, size: [320, 180], knobs: "1/2 q60", accuracy: 0.9, accuracy_kept: true, latency_ms: 120 };
  const bounds = { latencyMs: 100, accuracy: 0.8 };
  const late = new Frame("cam1", { ...told, source_size: { width: 640, height: 540 } }, new Uint8Array(), bounds);
  assert.deepEqual([late.verdict.latencyKept, late.verdict.accuracyKept, late.verdict.kept], [false, true, false]);
  assert.deepEqual(late.toSource([10, 20, 30, 40]), [20, 60, 60, 120]);
  const replayed = new Frame("cam1", { ...told, replayed: true }, new Uint8Array(), bounds);
  assert.ok(replayed.verdict.kept, "the bound of a frame from the past counts from sending");
  assert.equal(replayed.toSource([1, 2, 3, 4]), undefined);
  const untouched = new Frame("cam1", { ...told, knobs: "original" }, new Uint8Array(), bounds);
  assert.deepEqual(untouched.sourceSize, { width: 320, height: 180 });
  assert.throws(() => new Frame("cam1", { size: [1, 1] }, new Uint8Array(), bounds), { code: "link.protocol" });
});
