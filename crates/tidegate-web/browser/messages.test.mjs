// What the page makes of the node's messages, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";

import { exact, Newest, noPicture, readDetection, sessionState, Silence } from "./messages.js";

test("integers that are not exact become text, and nothing within a string does", () => {
  const at = "1777000000000000001";
  for (const [text, expected] of [
    [`{"at": ${at}}`, { at }],
    [`[${at},-${at}, 1]`, [at, `-${at}`, 1]],
    [at, at],
    [`{"id": "a:${at},"}`, { id: `a:${at},` }],
    [`{"id": "b\\"[${at}]\\\\", "at":${at}}`, { id: `b"[${at}]\\`, at }],
    [`{"id": "\\\\", "c:-${at}}": 1}`, { id: "\\", [`c:-${at}}`]: 1 }],
    [`[0.1234567890123456789, 1.5e300, 1234567890123456e2, 123456789012345]`, [0.12345678901234568, 1.5e300, 1234567890123456e2, 123456789012345]],
  ]) {
    assert.deepEqual(exact(text), expected, text);
  }
  assert.throws(() => exact(`{"at": ${at}`));
  // Strings without an end cost no more than their length.
  assert.throws(() => exact(`"${'\\"'.repeat(100_000)}`));
});

const good = {
  type: "detection", detector: "people", camera: "street", captured_at: "1777000000000000001", boxes: [[0, 0, 1, 1, 0.5, "person"]],
  source: { width: 640, height: 360 }, frame: { width: 320, height: 180 }, times: { total_ms: 83.4 }, kept: false,
};

test("a detection has what is shown of it", () => {
  const { camera, detector, captured_at, boxes } = good;
  assert.deepEqual(readDetection(good), { camera, detector, captured_at, boxes, size: { width: 640, height: 360 }, took: 83.4, isLate: true });
  const bare = { ...good, source: 5, frame: "wide", times: { total_ms: "long" }, kept: "no" };
  assert.deepEqual(readDetection(bare), { camera, detector, captured_at, boxes, size: null, took: null, isLate: false });
  assert.deepEqual(readDetection({ ...good, source: { width: 0, height: 0 } }).size, { width: 320, height: 180 });
  assert.equal(readDetection({ ...good, boxes: Array(5000).fill(boxes[0]) }).boxes.length, 200);
});

test("a session is connected, away, or gone with the time left", () => {
  for (const [session, expected] of [
    [{ connected: true }, "connected"],
    [{ connected: false }, "away"],
    [{ connected: false, ends_in_s: 0 }, "gone, ends in 0 s"],
    [{ connected: false, ends_in_s: 59 }, "gone, ends in 59 s"],
    [{ connected: false, ends_in_s: 3599 }, "gone, ends in 59 min"],
    [{ connected: false, ends_in_s: 258_000 }, "gone, ends in 71 h"],
  ]) {
    assert.equal(sessionState(session), expected);
  }
});

test("what is no detection is none", () => {
  for (const told of [null, undefined, [], "detection", 7, {}, { type: "detection" }, { type: "detection", boxes: [] }]) {
    assert.equal(readDetection(told), null, JSON.stringify(told));
  }
  for (const change of [
    { type: "note" }, { camera: 5 }, { camera: "" }, { camera: "x".repeat(1000) }, { detector: null }, { detector: {} },
    { captured_at: "now" }, { captured_at: null }, { captured_at: 1.5 }, { captured_at: 1e300 }, { captured_at: "9".repeat(40) }, { captured_at: ["1".repeat(16)] },
    { boxes: {} }, { boxes: [null] }, { boxes: [7] }, { boxes: [[]] }, { boxes: [["a", 0, 1, 1, 0.5, "person"]] }, { boxes: [[0, 0, 1, null, 0.5, "person"]] },
    { boxes: [[0, 0, 1, 1, 0.5, null]] }, { boxes: [[0, 0, 1, 1, "much", "person"]] }, { boxes: [...good.boxes, {}] },
    { boxes: [[0, 0, 1, 1, 0.5, "x".repeat(1000)]] },
  ]) {
    assert.equal(readDetection({ ...good, ...change }), null, JSON.stringify(change));
  }
});

test("the newest detections are bounded by cameras and by detectors", () => {
  const newest = new Newest();
  const found = (camera, detector) => ({ camera, detector });
  newest.set(found("kept", "d"));
  for (let number = 0; number < 1000; number += 1) {
    newest.set(found(`camera-${number}`, "d"));
    newest.set(found("kept", `detector-${number}`));
  }
  assert.equal(newest.cameras, 256);
  assert.equal(newest.of("camera-0").length, 0);
  assert.equal(newest.of("camera-999").length, 1);
  assert.equal(newest.of("kept").length, 16);
  assert.equal(newest.of("kept").at(-1).detector, "detector-999");
  newest.clear();
  assert.deepEqual([newest.cameras, newest.of("kept")], [0, []]);
});

test("a stream is silent when its usual time is over", () => {
  const silence = new Silence();
  silence.begin(1000);
  for (const [now, expected] of [[1000, 0], [2499, 0], [2500, 2], [3499, 2], [3500, 3], [91_000, 90]]) {
    assert.equal(silence.seconds(now), expected, `at ${now}`);
  }
  // A camera of ten pictures a second, and one of a picture in four seconds: one gap that was longer is no usual one.
  for (const [gap, before, after] of [[100, 1499, 1500], [4000, 9999, 10_000]]) {
    silence.begin(0);
    for (let now = 0; now <= 10 * gap; now += gap) silence.heard(now);
    silence.heard(11 * gap + 20_000);
    assert.equal(silence.seconds(11 * gap + 20_000 + before), 0);
    assert.ok(silence.seconds(11 * gap + 20_000 + after) > 0);
  }
  // So is one that is asked for few.
  silence.begin(0);
  silence.heard(100);
  assert.equal(silence.seconds(25_099, 10_000), 0);
  assert.equal(silence.seconds(25_100, 10_000), 25);
  assert.equal(silence.seconds(150_100, 1e9), 150);
  assert.equal(noPicture(25), "no picture for 25 s");
});
