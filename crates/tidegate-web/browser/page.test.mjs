// The page of a node in a real browser, against a real node with generated cameras.
//
// TIDEGATE_SCREENSHOTS names a folder for pictures of the page as it is on phones and desks, light and dark.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { showFabric } from "./fabric.mjs";
import { browse, colours, DESK, live, newest, open as openAt, poll, signIn, Site, tile } from "./site.mjs";

const PHONE = { width: 390, height: 844 };

let site, browser;
before(async () => {
  site = await Site.make();
  site.start();
  browser = await browse();
});
after(async () => {
  await browser?.close();
  await site?.kill();
  site?.remove();
});

const open = (options, url = site.url) => openAt(browser, url, options);

async function signedIn(options) {
  const page = await open(options);
  await signIn(page, site.password);
  return page;
}

test("a wrong password is refused with a sentence, and a right one shows live cameras with their figures", async () => {
  const page = await open();
  assert.ok(await page.getByLabel("User name").evaluate((field) => field === document.activeElement));
  await signIn(page, "tide");
  await page.getByRole("alert").filter({ hasText: "wrong" }).waitFor();
  await signIn(page, site.password);
  for (const camera of ["door", "street"]) {
    const found = await live(page, camera);
    assert.ok((await colours(found.locator("canvas"))).length > 20, "there is a picture");
    assert.match(await found.locator(".latency").innerText(), /^(< 1|\d+) ms of 500$/);
    assert.match(await found.locator(".size").innerText(), /^[\d.]+ (k|M)?B/);
    assert.match(await found.locator(".knobs").innerText(), /\S/);
    assert.match(await found.locator(".accuracy").innerText(), /^[01]\.\d\d of 0\.9$/);
    assert.match(await found.locator(".why").innerText(), /^[A-Z].+[.!?…]$/);
  }
  // One whose source cannot be opened says why.
  const broken = tile(page, "yard");
  await broken.locator(".state.down").waitFor();
  assert.match(await broken.locator(".why").innerText(), /no-such-folder/);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("pictures go on, and other bounds are asked for while they do", async () => {
  const page = await signedIn();
  const found = await live(page, "street");
  const first = await newest(page, "street");
  await poll(async () => BigInt(await newest(page, "street")) > BigInt(first), "another frame");
  await page.getByLabel("Latency").fill("250");
  await page.getByLabel("Latency").blur();
  await found.locator(".latency", { hasText: "of 250" }).waitFor();
  await page.getByLabel("Rate").fill("1");
  await page.getByLabel("Rate").blur();
  await poll(() => page.evaluate(() => [...document.querySelectorAll(".tile")].every((tile) => !tile.tile.bounds || tile.tile.bounds.fps === 1)), "a lower rate");
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("a camera of another node has the name of that node", async () => {
  const page = await signedIn();
  await live(page, "street");
  await page.route("**/cameras", async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, body: (await answer.text()).replaceAll('"node":null', '"node":"mill"') });
  });
  await tile(page, "street").locator(".source", { hasText: "at mill" }).waitFor();
  await page.unroute("**/cameras");
  await tile(page, "street").locator(".source", { hasNotText: "at mill" }).waitFor();
  await live(page, "street");
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("a click, or the keyboard, shows the original of a frame", async () => {
  const page = await signedIn();
  const found = await live(page, "street");
  await found.getByRole("button").focus();
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog", { name: "street" });
  await dialog.getByRole("img").waitFor();
  assert.deepEqual(await dialog.getByRole("img").evaluate((image) => [image.naturalWidth, image.naturalHeight]), [640, 360]);
  assert.match(await dialog.locator("#original-note").innerText(), /^Captured \d{4}-\d\d-\d\d \d\d:\d\d:\d\d.* original 640 × 360, [\d.]+ (k|M)B/);
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

/** A detection in the newest picture of `street`, as a detector publishes it. */
async function detect(page) {
  const at = await newest(page, "street");
  const text = JSON.stringify({
    type: "detection", detector: "people", model: "person", camera: "street", captured_at: "AT", epoch: 1,
    frame: { width: 320, height: 180 }, source: { width: 640, height: 360 }, knobs: "1/2", accuracy: 0.97,
    boxes: [[64, 72, 192, 288, 0.91, "person"], [320, 180, 480, 300, 0.66, "car"]],
    times: { total_ms: 83.4 }, bound_ms: 200, kept: true, original: "",
  });
  site.publish("detections/street/people", text.replace('"AT"', at));
}

test("detections are drawn over the picture that they are of and listed with their original", async () => {
  const page = await signedIn();
  const found = await live(page, "street");
  const canvas = found.locator("canvas");
  await poll(async () => {
    await detect(page);
    return /1 person, 1 car/.test(await canvas.getAttribute("aria-label"));
  }, "a box");
  await page.getByRole("link", { name: /^Detections/ }).click();
  const row = page.locator("#detection-list li").first();
  await row.getByText("1 person, 1 car").waitFor();
  assert.match(await row.innerText(), /street · people/);
  assert.match(await row.innerText(), /83 ms/);
  await row.getByRole("button", { name: /^Original of street/ }).click();
  await page.getByRole("dialog", { name: "street" }).getByRole("img").waitFor();
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("messages beside detections, and such as are none, disturb no detection", async () => {
  const page = await signedIn();
  await live(page, "street");
  await page.getByRole("link", { name: /^Detections/ }).click();
  const good = { type: "detection", detector: "wrong", camera: "street", captured_at: 1, boxes: [[0, 0, 1, 1, 0.5, "person"]] };
  for (const message of [null, { ...good, captured_at: 1e300 }, { ...good, boxes: [[0, 0, 1, 1, "much", null]] }]) {
    site.publish("detections/street/any", JSON.stringify(message));
  }
  site.publish("detections/street/any", JSON.stringify({ ...good, source: 5, times: { total_ms: "long" }, detector: "odd: 1234567890123456, 7" }));
  const row = page.locator("#detection-list li").first();
  await row.getByText("street · odd: 1234567890123456, 7").waitFor();
  assert.match(await row.innerText(), /1 person/);
  assert.equal(await page.locator("#detection-list li", { hasText: "wrong" }).count(), 0);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("an administrator sees clients, sinks, uplinks and flows with their state", async () => {
  const page = await signedIn();
  site.publish("rooms/kitchen/celsius", "21.5");
  await page.getByRole("link", { name: "Node", exact: true }).click();
  await page.locator("#table-sinks td", { hasText: "archive" }).waitFor();
  await page.locator("#table-sinks tr", { hasText: "archive" }).locator(".badge.good").waitFor();
  await page.locator("#table-sinks tr", { hasText: "cloud" }).locator(".badge.bad").waitFor();
  await page.locator("#table-flows td", { hasText: "rooms" }).waitFor();
  await page.locator("#table-uplinks", { hasText: "no other node" }).waitFor();
  await page.locator("#table-clients").waitFor();
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("an administrator sees the nodes of a fabric on a map, and that they are old once the node is silent", async () => {
  const page = await signedIn();
  await page.getByRole("link", { name: "Nodes", exact: true }).click();
  // This node has none.
  await page.getByRole("heading", { name: "This node is on its own" }).waitFor();
  await page.locator("#no-fabric-why", { hasText: "`[fabric]` of its configuration" }).waitFor();
  await showFabric(page);
  await page.getByRole("img", { name: "Map of 6 nodes in 3 cells" }).waitFor();
  await page.getByRole("heading", { name: "This node is on its own" }).waitFor({ state: "hidden" });
  assert.equal(await page.locator("#nodes-note").innerText(), "5 nodes, 3 linked, 1 doubted; 1 lost · 3 replicas · view 9f3c21d07ab4e511");
  const rows = await page.locator("#table-members tbody tr").allInnerTexts();
  assert.deepEqual(rows.map((row) => row.split("\t").slice(0, 4)), [
    ["edge", "here", "this node", "door, street"],
    ["depot", "lost", "–", "–"],
    ["harbour", "doubted", "–", "–"],
    ["mill", "here", "15 ms", "mill-1, mill-2, mill-3"],
    ["van", "here", "48 ms", "–"],
    ["yard", "here", "1.2 ms", "gate"],
  ]);
  await page.getByText("Member depot is lost, and what it held is at 2 of 3 owners.").waitFor();
  assert.equal(await page.locator("#map .link").count(), 3);
  // No figures of before that look like those of now.
  await page.route("**/v1/fabric*", (route) => route.abort());
  await page.locator(".old #nodes-note", { hasText: /^As it was \d+ s ago/ }).waitFor();
  await page.unroute("**/v1/fabric*");
  await page.locator("#nodes-note", { hasText: "5 nodes" }).waitFor();
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("on a phone nothing is wider than the screen, and each control has a name", async () => {
  const page = await signedIn({ viewport: PHONE, hasTouch: true, isMobile: true });
  await live(page, "street");
  await showFabric(page);
  for (const view of ["Cameras", "Detections", "Nodes", "Node"]) {
    await page.getByRole("link", { name: new RegExp(`^${view}\\b`) }).click();
    if (view === "Nodes") await page.getByRole("img", { name: /^Map of/ }).waitFor();
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `${view} is ${wide} pixels too wide`);
  }
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll("button, input, a, canvas")]
      .filter((control) => !(control.getAttribute("aria-label") || control.textContent.trim() || control.labels?.length || control.querySelector("[aria-label]")))
      .map((control) => control.outerHTML),
  );
  assert.deepEqual(nameless, []);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("after a restart of the node the page says so and goes on", async () => {
  const page = await signedIn();
  await live(page, "street");
  await site.kill();
  await page.getByRole("status").filter({ hasText: "does not answer" }).waitFor();
  await page.locator(".tile .state.down").first().waitFor();
  site.start();
  await page.getByRole("status").filter({ hasText: "there again" }).waitFor();
  await live(page, "street");
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("a node that hangs is said to, with the age of the last picture, and then it is live again", async () => {
  const page = await signedIn();
  const found = await live(page, "street");
  site.node.kill("SIGSTOP");
  try {
    await found.locator(".state", { hasText: /^No picture for \d+ s$/ }).waitFor();
    const [latency] = /^\d+/.exec(await found.locator(".latency").innerText());
    assert.ok(Number(latency) >= 1500, `the last picture is ${latency} ms old`);
    // Nor does the rest of the page wait for ever.
    await page.getByRole("status").filter({ hasText: "does not answer" }).waitFor();
    await found.getByRole("button").click();
    await page.getByRole("dialog").getByText("The node does not answer.").waitFor();
    await page.keyboard.press("Escape");
    assert.match(await found.locator(".state").innerText(), /^No picture for \d+ s$/);
  } finally {
    site.node.kill("SIGCONT");
  }
  await live(page, "street");
  await page.getByRole("status").filter({ hasText: "does not answer" }).waitFor({ state: "hidden" });
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("a user that signs out in one tab is out in the others", async () => {
  const page = await signedIn();
  await live(page, "street");
  const other = await page.context().newPage();
  await other.goto(site.url);
  await live(other, "street");
  await other.getByRole("button", { name: "Sign out" }).click();
  await other.getByLabel("User name").waitFor();
  await page.getByText("You signed out in another tab").waitFor();
  // It knew the password, and asks for it again.
  const status = () => page.evaluate(async () => (await fetch("/v1/me")).status);
  assert.equal(await status(), 401);
  await page.reload();
  await page.getByLabel("User name").waitFor();
  assert.equal(await status(), 401);
  await page.context().close();
});

test("a user that signs out is out, in the browser and at the node", async () => {
  const page = await signedIn();
  await live(page, "street");
  const [cookie] = await page.context().cookies(site.url);
  assert.ok(cookie.httpOnly && cookie.secure && cookie.sameSite === "Strict", JSON.stringify(cookie));
  const status = () => page.evaluate(async (cookie) => (await fetch("/cameras", { headers: { "x-was": cookie } })).status, cookie.name);
  assert.equal(await status(), 200);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("User name").waitFor();
  assert.equal(await status(), 401);
  // Nor does what the browser had before open anything.
  await page.context().addCookies([cookie]);
  assert.equal(await status(), 401);
  assert.equal(await page.locator(".tile").count(), 0);
  await page.context().close();
});

test("without TLS there is no login, and a display shows live cameras with the rights of its user", async () => {
  const page = await open({}, site.plainUrl);
  const found = await live(page, "street");
  assert.ok((await colours(found.locator("canvas"))).length > 20, "there is a picture");
  assert.equal(await page.locator("#who").innerText(), "wall");
  assert.ok(await page.getByRole("button", { name: "Sign out" }).isHidden());
  assert.deepEqual(await page.context().cookies(), []);
  const status = (path, options) => page.evaluate(async ([path, options]) => (await fetch(path, options)).status, [path, options]);
  assert.equal(await status("/cameras/street/snapshot.jpg"), 200);
  // It is no administrator, and cannot become one.
  assert.equal(await status("/v1/clients"), 403);
  assert.equal(await status("/v1/login", { method: "POST", headers: { Authorization: `Basic ${btoa(`admin:${site.password}`)}` } }), 404);
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

const shots = process.env.TIDEGATE_SCREENSHOTS;
test("pictures of the page", { skip: !shots && "TIDEGATE_SCREENSHOTS names no folder" }, async () => {
  mkdirSync(shots, { recursive: true });
  for (const [size, viewport] of [["desk", DESK], ["phone", PHONE]]) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await open({ viewport, colorScheme, deviceScaleFactor: size === "phone" ? 2 : 1 });
      const shot = (name) => page.screenshot({ path: join(shots, `${size}-${colorScheme}-${name}.png`), fullPage: size === "phone" });
      await shot("sign-in");
      await signIn(page, site.password);
      for (const camera of ["door", "street"]) await live(page, camera);
      await poll(async () => {
        await detect(page);
        return /person/.test(await tile(page, "street").locator("canvas").getAttribute("aria-label"));
      }, "a box");
      await shot("cameras");
      await tile(page, "street").getByRole("button").click();
      await page.getByRole("dialog").getByRole("img").waitFor();
      await shot("original");
      await page.keyboard.press("Escape");
      await page.getByRole("link", { name: /^Detections/ }).click();
      await shot("detections");
      await showFabric(page);
      await page.getByRole("link", { name: "Nodes", exact: true }).click();
      await page.getByRole("img", { name: /^Map of/ }).waitFor();
      await shot("nodes");
      await page.getByRole("link", { name: "Node", exact: true }).click();
      site.publish("rooms/kitchen/celsius", "21.5");
      await page.locator("#table-sinks .badge.bad").waitFor();
      await page.locator("#table-clients").waitFor();
      await shot("node");
      await page.context().close();
    }
  }
});
