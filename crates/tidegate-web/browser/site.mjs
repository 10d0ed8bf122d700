// A node of the real program with generated cameras, on loopback, and Debian's Chromium.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const program = process.env.TIDEGATE_PROGRAM;
/** A bound for what takes a moment; a machine that is busy takes many. */
export const READY_MS = 60_000;

const CONFIGURATION = `
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

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

export class Site {
  static async make() {
    assert.ok(program, "TIDEGATE_PROGRAM names the program");
    const site = new Site();
    site.folder = mkdtempSync(join(tmpdir(), "tidegate-page-"));
    [site.api, site.mqtt, site.link] = [await freePort(), await freePort(), await freePort()];
    site.url = `https://127.0.0.1:${site.api}`;
    const settings = [
      `node.api_listen=127.0.0.1:${site.api}`,
      `link.listen=127.0.0.1:${site.link}`,
      `mqtt.listener.main.listen=127.0.0.1:${site.mqtt}`,
      "mqtt.listener.main.allow_anonymous=true",
    ];
    const said = site.run("init", ...settings.flatMap((setting) => ["--set", setting]));
    site.password = /^\s+(\S+-\S+-\S+)$/m.exec(said)[1];
    const file = join(site.folder, "tidegate.toml");
    writeFileSync(file, readFileSync(file, "utf8") + CONFIGURATION);
    writeFileSync(join(site.folder, "rooms.toml"), FLOW);
    return site;
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

/** The browser; as root it runs without its own sandbox, as browsers do in containers. */
export const browse = () =>
  chromium.launch({
    executablePath: process.env.TIDEGATE_CHROMIUM,
    args: process.getuid() === 0 ? ["--no-sandbox"] : [],
  });
