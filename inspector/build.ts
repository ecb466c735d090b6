// Bundles the page into `app/inspector_files`: index.html, and files with a hash in their names.

import { mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { build } from "esbuild";

const folder = join(import.meta.dirname, "..", "app", "inspector_files");
const fresh = `${folder}.new`;

rmSync(fresh, { recursive: true, force: true });
mkdirSync(fresh, { recursive: true });
const { metafile } = await build({
  entryPoints: [join(import.meta.dirname, "src", "main.tsx")],
  outdir: fresh,
  entryNames: "[name]-[hash]",
  chunkNames: "chunk-[hash]",
  splitting: true,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  metafile: true,
});
const names = Object.keys(metafile.outputs).map((path) => basename(path));
const named = (ending: string): string => {
  const name = names.find((each) => each.startsWith("main-") && each.endsWith(ending));
  if (name === undefined) throw new Error(`nothing was built that ends with ${ending}`);
  return name;
};

// URLs are relative to `/inspector`, so that the page works behind a proxy that adds a prefix.
writeFileSync(
  join(fresh, "index.html"),
  `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Context inspector</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="inspector/${named(".css")}">
<script type="module" src="inspector/${named(".js")}"></script>
</head>
<body>
<div id="app"></div>
<noscript>The inspector needs JavaScript. The API reference is at <a href="docs">/docs</a>.</noscript>
</body>
</html>
`,
);
rmSync(folder, { recursive: true, force: true });
renameSync(fresh, folder);
console.log(`built ${readdirSync(folder).join(", ")}`);
