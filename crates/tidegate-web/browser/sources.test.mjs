// An HTTP camera, an RTSP camera and a folder that pictures are put into, side by side in the page of one node, with detection on one of them.
//
// TIDEGATE_SCREENSHOTS names a folder for a picture of the page.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { pictures, RtspCamera, Webcam } from "./cameras.mjs";
import { browse, colours, live, newest, noDetectors, open, poll, signIn, Site, tile } from "./site.mjs";

const noFfmpeg = spawnSync("ffmpeg", ["-version"], { stdio: "ignore" }).status !== 0 && "ffmpeg, which encodes the RTSP camera's pictures, is not installed";
const noBoxes = noDetectors();
const PICTURES = 20;

let site, browser, http, rtsp, shown;
const stops = [];
before(async () => {
  if (noFfmpeg) return;
  // Three streets that differ, as pictures that cameras have.
  const scenes = await Site.make(
    [1, 2, 3].map((seed) => `[camera.s${seed}]\nsource = "scene:street?size=640x360&seconds=5&people=8&seed=${seed}"\n`).join(""),
  );
  scenes.start();
  const streets = await Promise.all(["s1", "s2", "s3"].map((name) => pictures(scenes, name, PICTURES))).finally(() => scenes.kill());
  scenes.remove();
  http = await Webcam.start(streets[0]);
  stops.push(() => http.stop());
  site = await Site.make("");
  stops.push(() => site.remove());
  rtsp = await RtspCamera.start(join(site.folder, "rtsp"), streets[1]);
  stops.push(() => rtsp.stop());
  shown = streets[2];
  site.configure(`
[camera.webcam]
source = "${http.url}"
[camera.gate]
source = "${rtsp.url}"
[camera.porch]
source = "watch:porch?delete=1"
[detect.people]
cameras = "webcam"
model = "person"
latency = "5s"
accuracy = 0.5
fps = 2
enabled = ${!noBoxes}
`);
  mkdirSync(join(site.folder, "porch"));
  site.start();
  stops.push(() => site.kill());
  browser = await browse();
  stops.push(() => browser.close());
});
after(async () => {
  for (const stop of stops.reverse()) await stop();
});

/** Puts pictures into the watched folder as a camera does by FTP, one after another, until `stop`. */
function deliver() {
  let count = 0;
  const clock = setInterval(() => {
    const name = join(site.folder, "porch", `picture-${String(count).padStart(5, "0")}.jpg`);
    writeFileSync(`${name}.part`, shown[count++ % shown.length]);
    renameSync(`${name}.part`, name);
  }, 200);
  return () => clearInterval(clock);
}

test("an HTTP camera, an RTSP camera and a watched folder are live side by side", { skip: noFfmpeg }, async (t) => {
  const page = await open(browser, site.url, { viewport: { width: 1600, height: 820 } });
  await signIn(page, site.password);
  for (const camera of ["webcam", "gate"]) await live(page, camera);
  // The folder is empty as yet.
  const porch = tile(page, "porch");
  await porch.waitFor();
  assert.equal(await porch.locator(".state.live, .state.late").count(), 0);
  const stop = deliver();
  t.after(stop);
  for (const camera of ["webcam", "gate", "porch"]) {
    const found = await live(page, camera);
    await poll(async () => (await colours(found.locator("canvas"))).length > 20, `a picture of ${camera}`);
    const first = BigInt(await newest(page, camera));
    await poll(async () => BigInt(await newest(page, camera)) > first, `another picture of ${camera}`);
    assert.match(await found.locator(".latency").innerText(), /^(< 1|\d+) ms of 500$/);
    assert.match(await found.locator(".size").innerText(), /^[\d.]+ (k|M)?B/);
  }
  const label = (camera) => tile(page, camera).locator("canvas").getAttribute("aria-label");
  const shots = process.env.TIDEGATE_SCREENSHOTS;
  if (shots) mkdirSync(shots, { recursive: true });
  const shot = () => shots && page.screenshot({ path: join(shots, "three-sources.png"), fullPage: true });
  if (noBoxes) await shot();
  else {
    await poll(async () => {
      const is = async () => /\d person/.test(await label("webcam"));
      // Boxes stay for a moment: the picture of the page is of one at which they are there.
      return (await is()) && (await shot(), await is());
    }, "boxes on the webcam's picture");
    for (const camera of ["gate", "porch"]) assert.doesNotMatch(await label(camera), /person/, "one camera alone is looked at");
  }
  assert.deepEqual(page.wrong, []);
  await page.context().close();
});

test("boxes of live detection are drawn over one of them", { skip: noFfmpeg || noBoxes }, async (t) => {
  const page = await open(browser, site.url);
  await signIn(page, site.password);
  await page.getByRole("link", { name: /^Detections/ }).click();
  const row = page.locator("#detection-list li").first();
  await row.getByText(/\d person/).waitFor();
  assert.match(await row.innerText(), /webcam · people/);
  await page.context().close();
});
