// A node of the real program on loopback, pages of it that are open, and Debian's Chromium.

import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { appendFileSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const program = process.env.TIDEGATE_PROGRAM;
/** A bound for what takes a moment; a machine that is busy takes many. */
export const READY_MS = 60_000;

const GENERATED = `
[camera.door]
source = "scene:street?size=1280x720&fps=5&seconds=6&people=6&seed=3&loop=1"
[camera.street]
source = "scene:street?size=640x360&fps=5&seconds=6&people=8&cars=2&loop=1"
[camera.yard]
source = "folder:no-such-folder"
[sink.archive]
kind = "memory"
topics = "rooms/#"
[sink.cloud]
kind = "influx"
url = "http://127.0.0.1:9/write"
topics = "rooms/#"
batch_age = "100ms"
[flow.rooms]
file = "rooms.toml"
`;

const FLOW = `
[flow.rooms]
topics = ["rooms/+/celsius"]
[flow.rooms.parse]
format = "csv"
fields = ["celsius"]
[[flow.rooms.step]]
kernel = "average"
field = "celsius"
`;

/** Asks until the answer is something. */
export async function poll(ask, what) {
  const end = Date.now() + READY_MS;
  for (;;) {
    const said = await ask();
    if (said) return said;
    assert.ok(Date.now() < end, `not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

export class Site {
  /** A site whose configuration ends with `configuration`; by default with generated cameras, sinks and a flow. */
  static async make(configuration = GENERATED) {
    assert.ok(program, "TIDEGATE_PROGRAM names the program");
    const site = new Site();
    site.folder = mkdtempSync(join(tmpdir(), "tidegate-page-"));
    [site.api, site.mqtt, site.link, site.plain] = [await freePort(), await freePort(), await freePort(), await freePort()];
    site.url = `https://127.0.0.1:${site.api}`;
    site.plainUrl = `http://127.0.0.1:${site.plain}`;
    const settings = [
      `node.api_listen=127.0.0.1:${site.api}`,
      `link.listen=127.0.0.1:${site.link}`,
      `mqtt.listener.main.listen=127.0.0.1:${site.mqtt}`,
      "mqtt.listener.main.allow_anonymous=true",
      `web.plain=127.0.0.1:${site.plain}`,
      "web.plain_identity=user:wall",
    ];
    const said = site.run("init", ...settings.flatMap((setting) => ["--set", setting]));
    site.password = /^\s+(\S+-\S+-\S+)$/m.exec(said)[1];
    writeFileSync(join(site.folder, "rooms.toml"), FLOW);
    site.configure(configuration);
    return site;
  }

  /** Writes `sections` behind the configuration. */
  configure(sections) {
    appendFileSync(join(this.folder, "tidegate.toml"), sections);
  }

  /** Runs a command to its end; what it prints. */
  run(...args) {
    return execFileSync(program, args, { cwd: this.folder, encoding: "utf8", timeout: READY_MS });
  }

  start() {
    const log = openSync(join(this.folder, "node.log"), "a");
    this.node = spawn(program, ["node"], { cwd: this.folder, stdio: ["ignore", log, log] });
    this.ended = new Promise((resolve) => this.node.once("exit", resolve));
  }

  /** As a power cut would. */
  async kill() {
    this.node.kill("SIGKILL");
    await this.ended;
  }

  log() {
    return readFileSync(join(this.folder, "node.log"), "utf8");
  }

  publish(topic, message) {
    this.run("pub", "-h", `mqtt://127.0.0.1:${this.mqtt}`, "-t", topic, "-m", message);
  }

  remove() {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** The browser, or a program that starts it; as root it runs without its own sandbox, as browsers do in containers. */
export const browse = (executablePath = process.env.TIDEGATE_CHROMIUM, inSandbox = process.getuid() !== 0) =>
  chromium.launch({ executablePath, args: inSandbox ? [] : ["--no-sandbox"] });

export const DESK = { width: 1280, height: 860 };

/** A page of a node that is open in `browser`, and what went wrong in it. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: DESK, ignoreHTTPSErrors: true, ...options });
  context.setDefaultTimeout(READY_MS);
  const page = await context.newPage();
  page.wrong = [];
  page.on("pageerror", (error) => page.wrong.push(String(error)));
  page.on("console", (message) => {
    // The browser notes each answer of 401 and each connection that fails, which are part of what is tested.
    const isNetwork = /Failed to load resource|WebSocket connection/.test(message.text());
    if (message.type() === "error" && !isNetwork) page.wrong.push(message.text());
  });
  await poll(() => page.goto(url).then(() => true, () => false), "the page");
  return page;
}

export async function signIn(page, password) {
  await page.getByLabel("User name").fill("admin");
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Sign in" }).click();
}

export const tile = (page, camera) => page.locator("article.tile", { has: page.getByRole("heading", { name: camera, exact: true }) });

/** Waits until the tile of a camera is live. */
export async function live(page, camera) {
  const found = tile(page, camera);
  await found.locator(".state.live, .state.late").waitFor();
  await found.locator(".latency", { hasText: "ms" }).waitFor();
  return found;
}

/** Colours that a canvas shows, each as often as it does, on a coarse grid. */
export const colours = (canvas) =>
  canvas.evaluate((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const found = new Map();
    for (let at = 0; at < data.length; at += 4) {
      const colour = `${data[at] >> 4},${data[at + 1] >> 4},${data[at + 2] >> 4}`;
      found.set(colour, (found.get(colour) ?? 0) + 1);
    }
    return [...found];
  });

/** When the newest picture of a camera's tile was captured, in nanoseconds. */
export const newest = (page, camera) =>
  page.evaluate((camera) => [...document.querySelectorAll(".tile")].find((tile) => tile.tile.name === camera).tile.frame.captured_at, camera);

/** Why detectors of ours do not run on this machine; nothing if they do. */
export function noDetectors() {
  const cache = process.env.XDG_CACHE_HOME || join(homedir(), ".cache");
  const venv = process.env.TIDEGATE_WORKER_VENV || join(cache, "tidegate", "worker-venv");
  const python = process.env.TIDEGATE_WORKER_PYTHON || join(venv, "bin", "python");
  const { status } = spawnSync(python, ["-c", "import cv2"], { stdio: "ignore", timeout: READY_MS });
  return status === 0 ? undefined : `${python} has no OpenCV; workers/detector/setup.sh makes it`;
}
