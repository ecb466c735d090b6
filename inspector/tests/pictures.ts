// Takes the pictures of the documents, of the service at CONTEXT_URL after `context-service demo`.

import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";
import { join } from "node:path";

const url = process.env["CONTEXT_URL"] ?? "http://127.0.0.1:8080";
const folder = join(import.meta.dirname, "..", "..", "docs", "images");
const shown = "Demo: a long session (the service)";

interface Page<Item> {
  data: Item[];
}
const answer = await fetch(`${url}/v1/conversations?metadata[title]=${encodeURIComponent(shown)}&limit=1`);
const id = ((await answer.json()) as Page<{ conversation_id: string }>).data[0]?.conversation_id;
if (id === undefined) throw new Error(`run \`context-service demo --url ${url}\` first`);
const receipts = await fetch(`${url}/v1/conversations/${id}/compactions?limit=1`);
const compaction = ((await receipts.json()) as Page<{ compaction_id: string }>).data[0]?.compaction_id;

const browser = await playwright.launch({
  executablePath: await chromium.executablePath(),
  args: [...chromium.args.filter((word) => !/single-process|zygote/.test(word)), "--lang=en-US"],
});
for (const colorScheme of ["light", "dark"] as const) {
  const page = await browser.newPage({ colorScheme, locale: "en-US", viewport: { width: 1280, height: 800 } });
  for (const [name, hash, text] of [
    ["window", `#/c/${id}/window`, "stable prefix:"],
    ["time", `#/c/${id}/time`, "Point at a call"],
    ["compactions", `#/c/${id}/compactions?c=${compaction}`, "After: what stands for them"],
  ] as const) {
    await page.goto(`${url}/inspector${hash}`);
    await page.getByText(text).first().waitFor();
    await page.waitForLoadState("load");
    if (name === "window") await page.locator("a.cell").nth(1).hover();
    if (name === "time") await page.locator(".chart canvas").nth(1).waitFor();
    await page.screenshot({ path: join(folder, `inspector-${name}-${colorScheme}.png`), animations: "disabled" });
  }
  await page.close();
}
await browser.close();
