/** Streams of frames and of detections, against a fake node. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import type { WebSocket } from "ws";

import { CameraOfflineError, CameraUnknownError, connect, IdentityRefusedError, LinkDownError, type Client, type Event } from "../src/index.js";
import { AT, EPOCH, FakeNode, json, picture, poll, sendEvent, sendFrame, USER } from "./fake_node.js";

const PATH = "/cameras/cam1/frames";
const QUICK = { retries: { max: 5, waitMs: 1, waitMaxMs: 5 } };

async function site(t: TestContext): Promise<{ node: FakeNode; client: Client }> {
  const node = await FakeNode.start();
  const client = await connect(node.url, { ...USER, ...QUICK });
  t.after(async () => {
    client.close();
    await node.stop();
  });
  return { node, client };
}

function numberOf(jpeg: Uint8Array): number {
  return Number(Buffer.from(jpeg).toString().split(" ")[1]);
}

test("frames come with their verdicts; leaving the loop ends the subscription", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  const asked: string[] = [];
  let isClosed = false;
  node.sockets.set(PATH, (socket, query) => {
    asked.push(query.toString());
    socket.on("close", () => (isClosed = true));
    sendEvent(socket, { type: "started" });
    for (let number = 0; number < 3; number++) sendFrame(socket, number, { latency_ms: 90 * (number + 1) });
  });
  const kept: boolean[] = [];
  for await (const frame of client.frames("cam1", { latencyMs: 200, accuracy: 0.9, fps: 5, queue: 8 })) {
    assert.equal(frame.capturedAtNs, AT + BigInt(kept.length) * 100_000_000n);
    assert.deepEqual(Buffer.from(frame.jpeg), picture(kept.length));
    assert.deepEqual([frame.camera, frame.epoch, frame.size.width, frame.sourceSize?.width], ["cam1", EPOCH, 320, 640]);
    assert.deepEqual(Object.values(frame.stages), [1, 2, 3, 4, 5]);
    assert.equal(frame.verdict.latencyBoundMs, 200);
    kept.push(frame.verdict.kept);
    if (kept.length === 3) break;
  }
  assert.deepEqual(kept, [true, true, false]);
  assert.deepEqual(asked, ["latency_ms=200&accuracy=0.9&fps=5"]);
  await poll(() => isClosed);
});

test("a slow program has the newest frames, and all the rest that was told", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  let hasSent = false;
  node.sockets.set(PATH, (socket) => {
    sendEvent(socket, { type: "started" });
    for (let number = 0; number < 50; number++) {
      sendFrame(socket, number);
      if (number === 25) sendEvent(socket, { type: "missed", from: AT, to: AT + 1n, count: 3, text: "the deadline passed" });
    }
    sendEvent(socket, { type: "ended", reason: "unsubscribed", text: "it was unsubscribed" });
    hasSent = true;
  });
  const stream = client.events("cam1", { queue: 3 });
  const first = await stream.next();
  assert.equal(first.value?.type, "started");
  await poll(() => hasSent && stream.skipped >= 46);
  const rest: Event[] = [];
  for await (const event of stream) rest.push(event);
  const numbers = rest.flatMap((event) => (event.type === "frame" ? [numberOf(event.jpeg)] : []));
  assert.deepEqual(numbers, [47, 48, 49]);
  assert.equal(stream.skipped, 47);
  const missed = rest.find((event) => event.type === "missed");
  assert.ok(missed?.type === "missed" && missed.fromNs === AT && missed.count === 3 && missed.sentence === "the deadline passed");
  assert.deepEqual(rest.at(-1), { type: "ended", reason: "unsubscribed", sentence: "it was unsubscribed" });
});

test("every event has its type and its fields; those of a newer node are left out", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  node.sockets.set(PATH, (socket) => {
    for (const event of [
      { type: "started", subscription: 1, latency_ms: 250, accuracy: 0.9, fps: null },
      { type: "updated", subscription: 1, latency_ms: 300, accuracy: 0.8, fps: 5 },
      { type: "verdict", outcome: "of tomorrow" },
      { type: "infeasible", text: "no", latency_at_accuracy_ms: 300, accuracy_at_latency: 0.7, fps: 2 },
      { type: "infeasible", text: "nothing", latency_at_accuracy_ms: null, accuracy_at_latency: null, fps: null },
      { type: "feasible" },
      { type: "camera_offline", text: "gone" },
      { type: "camera_online" },
      { type: "no_frames", text: "401" },
      { type: "knobs_changed", captured_at: AT, from: "original", to: "1/2 q60", text: "less capacity" },
      { type: "controller_failed", text: "broken" },
      { type: "accuracy_assumed", text: "no table" },
      { type: "unchanged", captured_at: AT, same_as: AT - 1n, epoch: 7 },
      { type: "ended", reason: "camera_unregistered", text: "the camera was unregistered" },
    ]) {
      sendEvent(socket, event);
    }
  });
  const events: Event[] = [];
  for await (const event of client.events("cam1")) events.push(event);
  const nothing = { latencyAtAccuracyMs: undefined, accuracyAtLatency: undefined, framesPerSecond: undefined };
  assert.deepEqual(events, [
    { type: "started", bounds: { latencyMs: 250, accuracy: 0.9 } },
    { type: "updated", bounds: { latencyMs: 300, accuracy: 0.8 } },
    { type: "infeasible", sentence: "no", latencyAtAccuracyMs: 300, accuracyAtLatency: 0.7, framesPerSecond: 2 },
    { type: "infeasible", sentence: "nothing", ...nothing },
    { type: "feasible" },
    { type: "camera-offline", sentence: "gone", node: false },
    { type: "camera-online" },
    { type: "no-frames", sentence: "401" },
    { type: "knobs-changed", capturedAtNs: AT, before: "original", after: "1/2 q60", sentence: "less capacity" },
    { type: "controller-failed", sentence: "broken" },
    { type: "accuracy-assumed", sentence: "no table" },
    { type: "unchanged", capturedAtNs: AT, sameAsNs: AT - 1n },
    { type: "ended", reason: "camera_unregistered", sentence: "the camera was unregistered" },
  ]);
});

test("bounds change while frames come, and hold behind a broken connection", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  const queries: string[] = [];
  const asked: string[] = [];
  node.sockets.set(PATH, (socket, query) => {
    queries.push(query.toString());
    sendEvent(socket, { type: "started", latency_ms: Number(query.get("latency_ms")), accuracy: 0.5 });
    sendFrame(socket, 10 * queries.length);
    socket.on("message", (data) => {
      asked.push(String(data));
      sendEvent(socket, { type: "updated", latency_ms: 400, accuracy: 0.5, fps: 2 });
      sendFrame(socket, 5 + 10 * queries.length, { latency_ms: 350 });
    });
  });
  const stream = client.frames("cam1", { latencyMs: 200, accuracy: 0.5 });
  assert.equal((await stream.next()).value?.verdict.latencyBoundMs, 200);
  assert.throws(() => stream.update({ latencyMs: 0 }), { code: "frames.bound.invalid" });
  stream.update({ latencyMs: 400, fps: 2 });
  const { value: later } = await stream.next();
  assert.deepEqual([later?.verdict.latencyBoundMs, later?.verdict.kept], [400, true]);
  assert.deepEqual(stream.bounds, { latencyMs: 400, accuracy: 0.5 });
  node.cut();
  await stream.next();
  stream.close();
  assert.deepEqual(asked.map((text) => JSON.parse(text) as unknown), [{ type: "update", latency_ms: 400, fps: 2 }]);
  assert.deepEqual(queries, ["latency_ms=200&accuracy=0.5", "latency_ms=400&accuracy=0.5&fps=2"]);
});

test("bounds that change while the connection is being made hold, too", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  const asked: string[] = [];
  node.sockets.set(PATH, (socket, query) => {
    asked.push(query.toString());
    sendEvent(socket, { type: "started", latency_ms: Number(query.get("latency_ms")), accuracy: 0.5 });
    socket.on("message", (data) => {
      asked.push(String(data));
      sendEvent(socket, { type: "updated", latency_ms: 400, accuracy: 0.5, fps: 2 });
      sendFrame(socket, 0, { latency_ms: 350 });
    });
  });
  let open: () => void = () => undefined;
  node.gate = new Promise((resolve) => (open = resolve));
  const stream = client.frames("cam1", { latencyMs: 200, accuracy: 0.5 });
  const next = stream.next();
  await poll(() => node.log.includes(`WS ${PATH}`));
  stream.update({ latencyMs: 300 });
  stream.update({ latencyMs: 400, fps: 2 });
  open();
  const { value: frame } = await next;
  stream.close();
  assert.deepEqual([frame?.verdict.latencyBoundMs, frame?.verdict.kept], [400, true]);
  assert.deepEqual(asked, ["latency_ms=200&accuracy=0.5", '{"type":"update","latency_ms":400,"accuracy":0.5,"fps":2}']);
});

test("a stream comes back after a broken connection, and no frame comes twice", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  let openings = 0;
  node.sockets.set(PATH, (socket) => {
    sendEvent(socket, { type: "started" });
    openings++;
    // The second connection begins with a frame that the first one brought.
    for (let number = openings === 1 ? 0 : 1; number < 2 * openings; number++) sendFrame(socket, number);
    // Another start of the camera counts from the beginning.
    if (openings === 2) sendFrame(socket, 0, { epoch: EPOCH + 1n });
  });
  const seen: string[] = [];
  const told: string[] = [];
  const stream = client.frames("cam1", { queue: 8, onEvent: (event) => told.push(event.type) });
  for await (const frame of stream) {
    seen.push(`${frame.epoch - EPOCH}:${numberOf(frame.jpeg)}`);
    if (seen.length === 2) node.cut();
    if (seen.length === 5) break;
  }
  assert.deepEqual(seen, ["0:0", "0:1", "0:2", "0:3", "1:0"]);
  assert.deepEqual(told, ["started", "camera-offline", "camera-online", "started"]);
});

test("a node that stops and starts again is waited for", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  const serve = (socket: WebSocket): void => {
    sendEvent(socket, { type: "started" });
    sendFrame(socket, Date.now());
  };
  node.sockets.set(PATH, (socket) => {
    sendEvent(socket, { type: "started" });
    sendEvent(socket, { type: "ended", reason: "shutdown", text: "this node goes down" });
  });
  const stream = client.frames("cam1", {
    onEvent: (event) => {
      // It does not know its cameras yet when it is back.
      if (event.type === "camera-offline") node.sockets.delete(PATH);
    },
  });
  const next = stream.next();
  await poll(() => stream.offline?.type === "camera-offline" && stream.offline.node);
  await poll(() => node.log.filter((line) => line === `WS ${PATH}`).length >= 3);
  node.sockets.set(PATH, serve);
  assert.equal((await next).value?.camera, "cam1");
  assert.equal(stream.offline, undefined);
});

test("tries are used up at last", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  node.sockets.set(PATH, (socket) => {
    sendEvent(socket, { type: "started" });
    sendFrame(socket, 0);
  });
  const stream = client.frames("cam1");
  await stream.next();
  await node.stop();
  await assert.rejects(stream.next(), (error) => error instanceof LinkDownError && error.message.includes("5 further tries"));
  assert.deepEqual(await stream.next(), { done: true, value: undefined });
});

test("a node that lets in and closes at once uses up tries, too", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  node.sockets.set(PATH, (socket) => {
    sendEvent(socket, { type: "started" });
    socket.close(1011, "it fell over");
  });
  await assert.rejects(client.frames("cam1").next(), (error) => error instanceof LinkDownError && error.message.includes("it fell over"));
  assert.equal(node.log.filter((line) => line === `WS ${PATH}`).length, 6);
});

test("the reason why there is no stream is told at once", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  await assert.rejects(client.frames("cam9").next(), (error) => error instanceof CameraUnknownError && error.code === "frames.camera.unknown");
  assert.throws(() => client.frames("cam1", { latencyMs: 0 }), { code: "frames.bound.invalid" });
  assert.throws(() => client.frames("cam1", { accuracy: 1.5 }), { code: "frames.bound.invalid" });
  assert.throws(() => client.frames("cam1", { fps: 5000 }), { code: "frames.bound.invalid" });
  assert.throws(() => client.frames("cam1", { queue: 0 }), { code: "config.invalid" });
  // Its right was taken while it was connected.
  node.sockets.set(PATH, (socket) => {
    sendEvent(socket, { type: "started" });
    sendEvent(socket, { type: "error", code: "auth.action.denied", message: "your token is over" });
    socket.close(1008, "your token is over");
  });
  await assert.rejects(client.frames("cam1").next(), { code: "auth.action.denied", message: "your token is over" });
  assert.equal(node.log.filter((line) => line === `WS ${PATH}`).length, 1, "it is not asked again");
  const stream = client.frames("cam1");
  client.close();
  assert.deepEqual(await stream.next(), { done: true, value: undefined });
  assert.throws(() => client.frames("cam1"), { code: "sdk.closed" });
  await assert.rejects(connect(node.url), IdentityRefusedError);
});

test("an outage is an error where the program wants one, and its own errors are its own", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  node.sockets.set(PATH, (socket) => {
    sendEvent(socket, { type: "started" });
    sendEvent(socket, { type: "camera_offline", text: "cam1 is not reached" });
  });
  await assert.rejects(client.frames("cam1", { whenOffline: "throw" }).next(), (error) => {
    return error instanceof CameraOfflineError && error.message === "cam1 is not reached";
  });
  const onEvent = (): void => {
    throw new RangeError("of the program");
  };
  await assert.rejects(client.frames("cam1", { onEvent }).next(), RangeError);
  node.sockets.set(PATH, (socket) => {
    sendEvent(socket, { type: "started" });
    sendFrame(socket, 0);
  });
  const stream = client.frames("cam1", { whenOffline: "throw" });
  await stream.next();
  node.cut();
  await assert.rejects(stream.next(), CameraOfflineError);
});

test("messages that are none end the stream with their reason", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  for (const [send, text] of [
    [(socket: WebSocket) => socket.send("{"), /no JSON/],
    [(socket: WebSocket) => socket.send("[]"), /no object/],
    [(socket: WebSocket) => socket.send(picture(0)), /picture without its frame/],
    [(socket: WebSocket) => ["frame", "feasible"].forEach((type) => sendEvent(socket, { type })), /frame without its picture/],
    [(socket: WebSocket) => [json({ type: "frame" }), picture(0)].forEach((part) => socket.send(part)), /without its time/],
  ] as const) {
    node.sockets.set(PATH, send);
    await assert.rejects(client.frames("cam1").next(), (error) => {
      return error instanceof Error && "code" in error && error.code === "link.protocol" && text.test(error.message);
    });
  }
});

test("what the node's detectors find comes as they find it", { timeout: 20_000 }, async (t) => {
  const { node, client } = await site(t);
  const asked: (string | null)[] = [];
  const detection = {
    type: "detection",
    detector: "people",
    model: "person",
    camera: "cam1",
    captured_at: AT,
    epoch: 7,
    frame: { width: 320, height: 180 },
    source: { width: 640, height: 360 },
    knobs: "1/2 q60",
    accuracy: 0.97,
    boxes: [[1, 2, 3, 4, 0.9, "person"]],
    predictions: [],
    times: { total_ms: 120.5 },
    bound_ms: 200,
    kept: true,
    original: `cameras/cam1/snapshot.jpg?at=${AT}`,
  };
  let openings = 0;
  node.sockets.set("/v1/detections", (socket, query) => {
    asked.push(query.get("camera"));
    socket.send(json({ type: "of tomorrow" }));
    socket.send(json({ ...detection, epoch: ++openings }));
  });
  const stream = client.detections({ camera: "cam1" });
  const { value: first } = await stream.next();
  assert.ok(first !== undefined);
  assert.deepEqual([first.capturedAtNs, first.detector, first.model, first.source.width, first.totalMs, first.kept], [AT, "people", "person", 640, 120.5, true]);
  assert.deepEqual(first.boxes, [{ left: 1, top: 2, right: 3, bottom: 4, score: 0.9, label: "person" }]);
  node.cut();
  assert.equal((await stream.next()).value?.epoch, 2n);
  stream.close();
  assert.deepEqual(asked, ["cam1", "cam1"]);
  assert.deepEqual(await stream.next(), { done: true, value: undefined });
});

test("a node that stops sending is told second after second, with the age of the last picture, and the stream is opened again", { timeout: 60_000 }, async (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  let now = 1000;
  t.mock.method(performance, "now", () => now);
  const { node, client } = await site(t);
  const opened: WebSocket[] = [];
  node.sockets.set(PATH, (socket) => {
    opened.push(socket);
    sendEvent(socket, { type: "started" });
    sendFrame(socket, opened.length);
  });
  const told: Event[] = [];
  const stream = client.frames("cam1", { onEvent: (event) => told.push(event) });
  const pass = (ms: number): void => {
    for (let at = 0; at < ms; at += 250) {
      now += 250;
      t.mock.timers.tick(250);
    }
  };
  const silences = (): string[] => told.splice(0).flatMap((event) => (event.type === "silent" ? [event.sentence] : []));
  assert.equal(numberOf((await stream.next()).value?.jpeg ?? new Uint8Array()), 1);
  pass(1250);
  assert.deepEqual([silences(), stream.offline], [[], undefined]);
  pass(1500);
  assert.deepEqual(silences(), ["no picture for 2 s", "no picture for 3 s"]);
  assert.equal(stream.offline?.sentence, "no picture for 3 s");
  // A connection may have broken unseen: another brings pictures again, and nothing was broken.
  pass(8250);
  await poll(() => opened.length === 2);
  assert.equal(numberOf((await stream.next()).value?.jpeg ?? new Uint8Array()), 2);
  assert.equal(stream.offline, undefined);
  assert.ok(told.every((event) => event.type !== "camera-offline"));
  assert.ok(silences().includes("no picture for 9 s"));
  // A silence whose reason was told is that.
  sendEvent(opened[1] as WebSocket, { type: "unchanged", captured_at: AT + 300_000_000n, same_as: AT + 200_000_000n });
  await poll(() => told.some((event) => event.type === "unchanged"));
  const calm = client.frames("cam1");
  assert.equal(numberOf((await calm.next()).value?.jpeg ?? new Uint8Array()), 3);
  sendEvent(opened[2] as WebSocket, { type: "no_frames", text: "the lens is covered" });
  await poll(() => calm.offline);
  pass(5000);
  assert.equal(calm.offline?.sentence, "the lens is covered");
  calm.close();
  // One that is long ends the stream that asked for that.
  const strict = client.frames("cam1", { whenOffline: "throw" });
  assert.equal(numberOf((await strict.next()).value?.jpeg ?? new Uint8Array()), 4);
  const end = strict.next();
  pass(10_000);
  await assert.rejects(end, (error) => error instanceof CameraOfflineError && error.message === "no picture for 10 s");
});
