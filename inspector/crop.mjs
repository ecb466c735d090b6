import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";
import { readFileSync } from "node:fs";
const out = process.argv[2];
const browser = await playwright.launch({ executablePath: await chromium.executablePath(), args: chromium.args.filter((x) => !/single-process|zygote/.test(x)) });
const page = await browser.newPage({ viewport: { width: 1400, height: 620 } });
const img = (n, w, x, y, cw, ch) => `<div style="width:${cw}px;height:${ch}px;overflow:hidden;display:inline-block;margin:4px"><img style="margin-left:-${x}px;margin-top:-${y}px" src="data:image/png;base64,${readFileSync(`/work/scratch-people/shots/a/${n}.png`).toString("base64")}"></div>`;
await page.setContent(`<body style="margin:0;background:#888">${img("breaks-1440l",0,60,430,700,120)}${img("time-1440l",0,60,430,660,120)}${img("over-390d",0,0,700,390,200)}${img("window-390d",0,0,700,390,200)}${img("over-1440l",0,60,380,560,120)}</body>`);
await page.waitForTimeout(300); await page.screenshot({ path: out }); await browser.close();
