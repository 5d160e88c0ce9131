/* Bundles every file of src/components/ (ES modules that Streamlit imports), src/notebook.js (one that anywidget imports),
   src/talk-views.js and src/live-replay.js (classic scripts for exported talks and replays) into static/. `node build.mjs --check` writes nothing and fails if a
   file of static/ is out of date. */

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = dirname(fileURLToPath(import.meta.url));
const components = readdirSync(`${root}/src/components`).map((name) => ({ entry: `src/components/${name}`, format: "esm" }));
const scripts = ["talk-views.js", "live-replay.js"].map((name) => ({ entry: `src/${name}`, format: "iife" }));
const entries = [...components, { entry: "src/notebook.js", format: "esm" }, ...scripts];

const sha256 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash("sha256")).digest("hex");

async function bundle({ entry, format }) {
  const { outputFiles, metafile } = await build({
    absWorkingDir: root,
    entryPoints: [entry],
    outdir: "static",
    bundle: true,
    format,
    charset: "utf8",
    target: "esnext",
    legalComments: "none",
    tsconfigRaw: "{}",
    metafile: true,
    write: false,
  });
  const code = outputFiles[0].text;
  const sources = Object.keys(metafile.inputs).sort();
  const hashed = sources.flatMap((path) => [`${path}\0`, readFileSync(`${root}/${path}`), "\0"]);
  const header = [
    "// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.",
    `// Sources: ${sources.join(" ")}`,
    `// SHA-256 of the sources: ${sha256(...hashed)}`,
    `// SHA-256 of the code: ${sha256(code)}`,
  ];
  return { name: basename(entry), text: `${header.join("\n")}\n${code}` };
}

const built = await Promise.all(entries.map(bundle));
const names = new Set(built.map(({ name }) => name));
const present = readdirSync(`${root}/static`).filter((name) => name.endsWith(".js"));
const current = ({ name, text }) => present.includes(name) && readFileSync(`${root}/static/${name}`, "utf8") === text;
const stale = [...built.filter((file) => !current(file)).map(({ name }) => name), ...present.filter((name) => !names.has(name))];

if (process.argv.includes("--check")) {
  if (stale.length) console.error(`Out of date in static/: ${stale.join(", ")}. Run \`make browser\`.`);
  process.exitCode = stale.length ? 1 : 0;
} else {
  for (const { name, text } of built) writeFileSync(`${root}/static/${name}`, text);
  for (const name of present) if (!names.has(name)) rmSync(`${root}/static/${name}`);
  console.log(stale.length ? `Built: ${stale.join(", ")}` : "All built files are up to date.");
}
