import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";
import { readFileSync, existsSync } from "node:fs";
const [dir, size, w, out, ...names] = process.argv.slice(2);
const browser = await playwright.launch({ executablePath: await chromium.executablePath(), args: chromium.args.filter((x) => !/single-process|zygote/.test(x)) });
const page = await browser.newPage({ viewport: { width: 1500, height: 400 } });
await page.setContent(`<body style="margin:0;background:#888;display:flex;flex-wrap:wrap;gap:6px;font:12px sans-serif">${names.filter(n=>existsSync(`${dir}/${n}-${size}.png`)).map((n) => `<div><b>${n}</b><br><img width=${w} src="data:image/png;base64,${readFileSync(`${dir}/${n}-${size}.png`).toString("base64")}"></div>`).join("")}</body>`);
await page.waitForTimeout(500); await page.screenshot({ path: out, fullPage: true }); await browser.close();
