// Bundles the pages into the folder that is named: index.html and docs.html, and files with a hash
// in their names.

import { mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { build, type BuildOptions } from "esbuild";

const folder = process.argv[2];
if (folder === undefined) throw new Error("no folder is named");
const fresh = `${folder}.new`;

rmSync(fresh, { recursive: true, force: true });
mkdirSync(fresh, { recursive: true });

/** Bundle a script with its styles, and return the names of both. */
async function bundled(source: string, options: BuildOptions): Promise<{ script: string; style: string }> {
  const { metafile } = await build({
    entryPoints: [join(import.meta.dirname, "src", source)],
    outdir: fresh,
    entryNames: "[name]-[hash]",
    chunkNames: "chunk-[hash]",
    bundle: true,
    minify: true,
    target: "es2022",
    legalComments: "none",
    metafile: true,
    ...options,
  });
  const names = Object.keys(metafile?.outputs ?? {}).map((path) => basename(path));
  const named = (ending: string): string => {
    const name = names.find((each) => each.startsWith(source.split(".")[0] ?? source) && each.endsWith(ending));
    if (name === undefined) throw new Error(`nothing was built of ${source} that ends with ${ending}`);
    return name;
  };
  return { script: named(".js"), style: named(".css") };
}

// URLs are relative to `/inspector` and `/docs`, so that the pages work behind a proxy that adds a
// prefix.
const page = (title: string, colours: string, style: string, script: string, body: string): string => `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="${colours}">
<title>${title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="inspector/${style}">
${script}
</head>
<body>
${body}
</body>
</html>
`;

const inspector = await bundled("main.tsx", { format: "esm", splitting: true });
const docs = await bundled("docs.tsx", { format: "iife" });
writeFileSync(
  join(fresh, "index.html"),
  page("Context inspector", "light dark", inspector.style, `<script type="module" src="inspector/${inspector.script}"></script>`,
    `<div id="app"></div>
<noscript>The inspector needs JavaScript. The API is described at <a href="openapi.json">/openapi.json</a>.</noscript>`),
);
writeFileSync(
  join(fresh, "docs.html"),
  page("Context Service API", "light dark", docs.style, `<script defer src="inspector/${docs.script}"></script>`,
    `<div id="app"></div>
<noscript>The reference needs JavaScript. The API is described at <a href="openapi.json">/openapi.json</a>.</noscript>`),
);
rmSync(folder, { recursive: true, force: true });
renameSync(fresh, folder);
console.log(`built ${readdirSync(folder).join(", ")}`);
