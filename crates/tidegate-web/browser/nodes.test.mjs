// Where the page draws the nodes of a fabric, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";

import { bounds, inWords, layout, linkOf } from "./nodes.js";

const member = (name, position, more = {}) => ({ name, position, standing: "here", linked: false, me: false, mobile: false, ...more });
const cell = (name, south_west, north_east) => ({ name, members: 1, south_west, north_east });
/** Left, top, right and bottom of each rectangle of an outline. */
const rectangles = (path) =>
  [...path.matchAll(/M(\S+) (\S+)H(\S+)V(\S+)H\S+Z/g)].map((found) => found.slice(1).map(Number));

test("the map is round the shorter way, also over the date line", () => {
  assert.deepEqual(bounds([[52, 4], [53, 6], [51, 5]]), { west: 4, east: 6, south: 51, north: 53 });
  assert.deepEqual(bounds([[-17, 178], [-14, -171.5], [-21, -175]]), { west: 178, east: 188.5, south: -21, north: -14 });
  assert.deepEqual(bounds([[10, -120], [10, 0], [10, 119]]), { west: -120, east: 119, south: 10, north: 10 });
  assert.deepEqual(bounds([[7, 8]]), { west: 8, east: 8, south: 7, north: 7 });
  assert.equal(bounds([]), null);
});

test("nodes lie within the map as they lie on the earth", () => {
  const map = layout([], [member("north", [54, 4]), member("east", [52, 8]), member("nowhere", null)], 800);
  const [north, east] = map.points;
  assert.deepEqual(map.points.map((point) => point.member.name), ["north", "east"]);
  assert.ok(north.y < east.y && north.x < east.x);
  for (const { x, y } of map.points) assert.ok(x > 0 && x < 800 && y > 0 && y < map.height, `${x} ${y} of ${map.height}`);
  // At 53° a degree of longitude has 0.6 of the length of one of latitude.
  const ratio = (east.x - north.x) / 4 / ((east.y - north.y) / 2);
  assert.ok(Math.abs(ratio - Math.cos((53 * Math.PI) / 180)) < 0.01, `${ratio}`);
  assert.equal(layout([], [member("nowhere", null)], 800), null);
});

test("a single node, many at one place, and one at a pole have a map", () => {
  for (const members of [[member("one", [52, 4])], Array(10_000).fill(member("all", [0, 0])), [member("pole", [90, 0]), member("other", [-90, 0])]]) {
    const map = layout([], members, 390);
    assert.equal(map.points.length, members.length);
    for (const { x, y } of map.points.slice(0, 3)) assert.ok(x >= 0 && x <= 390 && y >= 0 && y <= map.height, `${x} ${y}`);
    assert.equal(map.hasNames, members.length <= 30);
  }
});

test("cells are cut to the map, and come round the date line", () => {
  const members = [member("west", [0, 179]), member("east", [0, -179])];
  const cells = [
    cell("left", [-90, 0], [90, 180]),
    cell("right", [-90, -180], [90, 0]),
    cell("far", [-10, 20], [10, 30]),
  ];
  const map = layout(cells, members, 600);
  assert.deepEqual(map.cells.map(({ name }) => name), ["left", "right"]);
  const [[left], [right]] = map.cells.map(({ path }) => rectangles(path));
  assert.equal(left[2], right[0], "they meet at the date line, which is in the middle");
  assert.equal(left[2], 300);
  const [west, east] = map.points;
  assert.ok(west.x < 300 && east.x > 300);
  for (const edge of [...left, ...right]) assert.ok(edge >= -9 && edge <= 609, `${edge}`);
});

test("figures and links are said in words", () => {
  assert.equal(inWords({ members: 1, linked: 0, doubted: 0, lost: 0 }), "1 node, 0 linked");
  assert.equal(inWords({ members: 9, linked: 7, doubted: 2, lost: 1 }), "9 nodes, 7 linked, 2 doubted; 1 lost");
  for (const [row, expected] of [
    [{ me: true, linked: false, round_trip_ms: null }, "this node"],
    [{ me: false, linked: false, round_trip_ms: null }, "–"],
    [{ me: false, linked: true, round_trip_ms: null }, "up"],
    [{ me: false, linked: true, round_trip_ms: 0.73 }, "0.7 ms"],
    [{ me: false, linked: true, round_trip_ms: 123.4 }, "123 ms"],
  ]) {
    assert.equal(linkOf(row), expected);
  }
});
