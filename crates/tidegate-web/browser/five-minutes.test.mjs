// The chapter docs/src/five-minutes.md, as it is written: its commands in their order, in a fresh home, what they print, and the page.
//
// A block of `sh` is run in a shell that lasts for the chapter, and has to end well; a block of `text` right behind one is what it prints,
// in which … stands for anything, and for any lines where it stands alone. The section "Install" runs in a copy of the parts of the checkout
// that it names, in which `cargo install` hands out the program that is tested. The rest runs in a network namespace of its own where that is
// allowed, so that the ports are free that the chapter names.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmodSync, cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";

import { browse, live, noDetectors, open, poll, signIn } from "./site.mjs";

const checkout = process.env.TIDEGATE_CHECKOUT;
const program = process.env.TIDEGATE_PROGRAM;
const STEP_MS = 90_000;
/** The clip of a real camera, where it is. */
const clip = join(process.env.TIDEGATE_DATA || join(checkout, "../shared/data"), "video/one-by-one-person-detection.mp4");

/** The sections of the chapter: each a title and its steps, commands and the output that is expected of them. */
function sections(markdown) {
  const found = [];
  const lines = markdown.split("\n");
  for (let at = 0; at < lines.length; at++) {
    if (lines[at].startsWith("## ")) found.push({ title: lines[at].slice(3), steps: [] });
    if (!lines[at].startsWith("```")) continue;
    const language = lines[at].slice(3);
    const end = lines.indexOf("```", at + 1);
    const text = lines.slice(at + 1, end);
    if (language === "sh") found.at(-1).steps.push({ commands: text.join("\n"), line: at + 2 });
    else if (language === "text" && lines[at - 1] === "```") found.at(-1).steps.at(-1).output = text;
    else assert.fail(`line ${at + 1}: a block is commands (sh) or right behind them their output (text)`);
    at = end;
  }
  return found;
}

/** Whether output is as it is expected. */
function fits(expected, output) {
  if (!expected.length) return !output.length;
  const [first, ...rest] = expected;
  if (first === "…") return fits(rest, output) || (output.length > 0 && fits(expected, output.slice(1)));
  const pattern = first.split("…").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join(".*");
  return output.length > 0 && new RegExp(`^${pattern}$`).test(output[0]) && fits(rest, output.slice(1));
}

test("output fits where … stands for what differs", () => {
  for (const [expected, output, is] of [
    [[], [], true],
    [["a"], ["a"], true],
    [["a"], [], false],
    [["a"], ["a", "b"], false],
    [["a … (c)"], ["a b (c)"], true],
    [["a … (c)"], ["a b (d)"], false],
    [["…", "c"], ["a", "b", "c"], true],
    [["…", "c"], ["c", "d"], false],
    [["a", "…"], ["a"], true],
  ]) {
    assert.equal(fits(expected, output), is, `${JSON.stringify(expected)} against ${JSON.stringify(output)}`);
  }
});

/** A shell that takes one step after another and keeps its folder, its functions and its jobs between them. */
class Shell {
  constructor({ folder, environment }) {
    this.folder = folder;
    this.count = 0;
    const options = { cwd: join(folder, "clone"), env: environment, stdio: ["pipe", "pipe", "inherit"], detached: true };
    this.process = spawn("bash", ["--norc", "-se"], options);
    // One that has ended is seen by the end of its output.
    this.process.stdin.on("error", () => {});
    this.marks = createInterface(this.process.stdout)[Symbol.asyncIterator]();
  }

  /** Goes on as a shell of the same process, environment and folder in a network namespace of its own. */
  async enter() {
    if (!within) return;
    this.process.stdin.write(`exec ${within.join(" ")} bash --norc -se\n`);
    await this.run("ip link set lo up");
  }

  /** Runs commands to their end; what they print. */
  async run(commands) {
    const step = join(this.folder, `step-${this.count++}`);
    writeFileSync(step, `${commands}\n`);
    writeFileSync(`${step}.out`, "");
    this.process.stdin.write(`. ${step} >${step}.out 2>&1 </dev/null; echo done\n`);
    let clock;
    const late = new Promise((resolve) => (clock = setTimeout(resolve, STEP_MS, { value: "late" })));
    const { value } = await Promise.race([this.marks.next(), late]);
    clearTimeout(clock);
    const said = readFileSync(`${step}.out`, "utf8");
    const why = value === "late" ? `took longer than ${STEP_MS / 1000} s` : "failed";
    assert.equal(value, "done", `this ${why}:\n${commands}\nit printed:\n${said}`);
    return said;
  }

  /** Ends it with all that it has started. */
  async end() {
    const ended = this.process.exitCode ?? once(this.process, "exit");
    try {
      process.kill(-this.process.pid, "SIGKILL");
    } catch {
      // All have ended.
    }
    await ended;
  }
}

/** How commands get a network namespace of their own with its loopback up; nothing where that is not allowed. */
function namespace() {
  const ways = process.getuid() === 0 ? [["unshare", "--net"]] : [["unshare", "--user", "--map-root-user", "--net"]];
  return ways.find(([command, ...args]) => spawnSync(command, [...args, "ip", "link", "set", "lo", "up"]).status === 0);
}

/** A port that the chapter names and that is taken; nothing if all are free. */
async function taken() {
  for (const port of [7080, 7443, 1883]) {
    const server = createServer();
    const is = await new Promise((resolve) => {
      server.once("error", () => resolve(true));
      server.listen(port, "127.0.0.1", () => resolve(false));
    });
    server.close();
    if (is) return port;
  }
}

const within = namespace();
const withoutMqtt = spawnSync("mosquitto_sub", ["--help"]).error && "mosquitto_sub is not installed";
const busy = within ? undefined : await taken();
const skip = noDetectors() || withoutMqtt || (busy && `port ${busy} is taken, and network namespaces are not allowed`);

/** A home folder in which nothing is yet, and the environment of a user who has just logged in. */
function home() {
  const folder = mkdtempSync(join(tmpdir(), "tidegate-five-"));
  const [user, tools] = [join(folder, "home"), join(folder, "tools")];
  for (const made of [user, tools, join(folder, "clone")]) mkdirSync(made);
  const old = homedir();
  const environment = {
    PATH: `${tools}:${process.env.PATH}`,
    HOME: user,
    LANG: "C.UTF-8",
    TIDEGATE_PROGRAM: program,
    // Packages that are here already are not fetched again.
    XDG_CACHE_HOME: process.env.XDG_CACHE_HOME || join(old, ".cache"),
    XDG_CONFIG_HOME: process.env.XDG_CONFIG_HOME || join(old, ".config"),
    RUSTUP_HOME: process.env.RUSTUP_HOME || join(old, ".rustup"),
    ...Object.fromEntries(Object.entries(process.env).filter(([name]) => /^(PIP_|SSL_|TIDEGATE_WORKER_|https?_proxy|no_proxy)/i.test(name))),
  };
  // A build of an hour is not for a test: this installs what was built.
  writeFileSync(
    join(tools, "cargo"),
    `#!/bin/sh
[ "$*" = "install --path crates/tidegate" ] && grep -q '^name = "tidegate"$' crates/tidegate/Cargo.toml || { echo "cargo $*: not as README.md says" >&2; exit 1; }
mkdir -p "$HOME/.cargo/bin" && ln -s "$TIDEGATE_PROGRAM" "$HOME/.cargo/bin/tidegate"
`,
  );
  chmodSync(join(tools, "cargo"), 0o755);
  return { folder, user, tools, environment };
}

/** Copies the parts of the checkout that the section "Install" names, so that it leaves nothing in there. */
function clone({ folder }) {
  const built = /\/(__pycache__|build|target|node_modules|[^/]*\.egg-info)$/;
  for (const part of ["Cargo.toml", "scripts/setup", "workers/detector", "sdk/python", "crates/tidegate/Cargo.toml"]) {
    cpSync(join(checkout, part), join(folder, "clone", part), { recursive: true, filter: (path) => !built.test(path) });
  }
}

/** The browser of a user at the node's machine, which is another namespace. */
async function browserAt(pid, { tools }) {
  if (!within) return browse();
  const way = process.getuid() === 0 ? "--net" : "--user --preserve-credentials --net";
  const starter = join(tools, "chromium");
  writeFileSync(starter, `#!/bin/sh\nexec nsenter --target ${pid} ${way} -- "$TIDEGATE_CHROMIUM" "$@"\n`);
  chmodSync(starter, 0o755);
  return browse(starter, false);
}

/** The section "In a browser", as a person does it. */
async function look(pid, at, password, name) {
  const browser = await browserAt(pid, at);
  try {
    const page = await open(browser, "https://127.0.0.1:7080/");
    await signIn(page, password);
    const street = await live(page, "street");
    await poll(async () => /\d person/.test(await street.locator("canvas").getAttribute("aria-label")), "boxes in the tile");
    if (process.env.TIDEGATE_SCREENSHOTS) await page.screenshot({ path: join(process.env.TIDEGATE_SCREENSHOTS, `five-minutes-${name}.png`) });
    await street.getByRole("button").click();
    await page.getByRole("dialog", { name: "street" }).getByRole("img").waitFor();
    assert.deepEqual(page.wrong, []);
    // Without the s of https there is a sentence in place of an error of the browser.
    await page.goto("http://127.0.0.1:7080/");
    await page.getByText("write https:// in place of http://").waitFor();
  } finally {
    await browser.close();
  }
}

/** The section "If something is different": each port that another node has is named with the setting that moves it. */
async function collide(shell) {
  const said = await shell.run(`mkdir ~/second && cd ~/second && tidegate init >init.out
tidegate node || echo "ended with $?"
tidegate node --set link.listen=127.0.0.1:7444 || echo "ended with $?"
tidegate node --set link.listen=127.0.0.1:7444 --set node.api_listen=127.0.0.1:7081 || echo "ended with $?"
cd ~/site`);
  for (const [port, section] of [[7443, "[link]"], [7080, "[node]"], [1883, "[mqtt.listener.main]"]]) {
    assert.match(said, new RegExp(`cannot listen on 127\\.0\\.0\\.1:${port}`));
    assert.ok(said.includes(section), said);
  }
  assert.equal(said.match(/ended with 2/g)?.length, 3, said);
}

/** Walks through the chapter; `source` stands in the place of the scene if it is given. */
async function walk(t, at, name, source) {
  const chapter = readFileSync(join(checkout, "docs/src/five-minutes.md"), "utf8");
  const parts = sections(source ? chapter.replaceAll(/scene:street\?[^':…]*/g, source) : chapter);
  let password, why;
  const step = async ({ commands, output, line }) => {
    const said = await shell.run(commands);
    password ??= /^ {2}(\S+-\S+-\S+)$/m.exec(said)?.[1];
    const lines = said.split("\n").map((part) => part.trimEnd()).filter((part) => part);
    if (output) assert.ok(fits(output, lines), `line ${line}: expected\n${output.join("\n")}\nand this was printed:\n${said}`);
  };
  const part = async (t, { title, steps }) => {
    if (title === "Install") clone(at);
    if (title === "The same in Python" && at.noPython) return t.skip(at.noPython);
    for (const one of steps) {
      try {
        await step(one);
      } catch (error) {
        // So pip says that there is no network, as scripts/sdk-python knows.
        if (!/bin\/pip /.test(one.commands) || !/connection broken by/.test(error.message)) throw error;
        at.noPython = "the packages of sdk/python cannot be had without a network";
      }
    }
    if (title === "In a browser") await look(shell.process.pid, at, password, name);
    if (title === "Your camera") await collide(shell);
    if (title === "Install") {
      at.isInstalled = true;
      await shell.enter();
    }
  };
  const shell = new Shell(at);
  if (at.isInstalled) {
    await shell.run("export PATH=~/.cargo/bin:$PATH");
    await shell.enter();
  }
  for (const one of parts) {
    if (why || (one.title === "Install" && at.isInstalled)) continue;
    await t.test(one.title, (t) => part(t, one).catch((error) => {
      why = error;
      throw error;
    }));
  }
  await shell.end();
  const log = join(at.user, "site/node.log");
  if (why && existsSync(log)) t.diagnostic(readFileSync(log, "utf8"));
  for (const made of ["site", "second"]) rmSync(join(at.user, made), { recursive: true, force: true });
}

let at;
after(() => at && rmSync(at.folder, { recursive: true, force: true }));

test("the chapter is true as it is written", { skip, timeout: 240_000 }, async (t) => {
  at ??= home();
  await walk(t, at, "scene");
});

const noClip = !existsSync(clip) && "no clip of a real camera is beside the checkout";
test("the chapter is true with a clip of a real camera", { skip: skip || noClip, timeout: 240_000 }, async (t) => {
  at ??= home();
  await walk(t, at, "clip", `video:${clip}?loop=1`);
});
