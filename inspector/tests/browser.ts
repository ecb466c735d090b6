// Drives the page in a real browser, as `tests/test_inspector.py` asks it to.
//
// The service is at CONTEXT_URL, and INSPECTOR_TASK names what to do; the answer is a line of JSON.
// Anything that is wrong on the way is listed in `problems`: an error on the console, a request to
// anyone else, a violation of the Content-Security-Policy, a finding of axe.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import chromium from "@sparticuz/chromium";
import { type BrowserContextOptions, chromium as playwright, type Page } from "playwright-core";

const url = process.env["CONTEXT_URL"] ?? "";
const task = JSON.parse(process.env["INSPECTOR_TASK"] ?? "{}") as Record<string, string>;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const problems: string[] = [];
const facts: Record<string, unknown> = {};

const browser = await playwright.launch({
  executablePath: await chromium.executablePath(),
  // In one process, as the package proposes it, the browser ends with the first closed context.
  args: [...chromium.args.filter((word) => !/single-process|zygote/.test(word)), "--lang=en-US"],
});

async function opened(options: BrowserContextOptions = {}): Promise<Page> {
  const context = await browser.newContext({ locale: "en-US", viewport: { width: 1280, height: 900 }, ...options });
  context.setDefaultTimeout(30_000); // a loaded machine draws the API reference late
  const page = await context.newPage();
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`));
  });
  page.on("console", (message) => {
    // The browser itself reports an expected 401 or 4xx of the API as an error.
    if (message.type() === "error" && !/status of 4\d\d/.test(message.text())) problems.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(`${url}/`) && !request.url().startsWith("data:")) problems.push(`request: ${request.url()}`);
  });
  return page;
}

async function see(page: Page, hash: string, text: string | RegExp): Promise<void> {
  const here = page.url().split("#")[0];
  if (here === `${url}/inspector`) await page.evaluate((to) => (location.hash = to), hash);
  else await page.goto(`${url}/inspector${hash}`);
  await page.getByText(text).first().waitFor();
}

async function audit(page: Page, name: string, look = "light"): Promise<void> {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (wide > 1) problems.push(`${name} is ${wide} pixels too wide (${look})`);
  if (look === "narrow") return; // the same elements in the same colours
  await page.evaluate(axe);
  const found = await page.evaluate(async (only) => {
    const { violations } = await (globalThis as unknown as { axe: { run: (options: object) => Promise<{ violations: { id: string; nodes: { html: string; failureSummary?: string }[] }[] }> } }).axe.run(only);
    return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.html.slice(0, 160)} ${node.failureSummary ?? ""}`).join(" | ")}`);
  }, look === "dark" ? { runOnly: ["color-contrast"] } : {}); // dark differs in its colours only
  problems.push(...found.map((each) => `axe on ${name} (${look}): ${each}`));
}

let last = "nothing yet";

/** Confirm an action in its dialog, and wait for what the page then says. */
async function confirm(page: Page, name: string, done: RegExp, fill?: () => Promise<void>): Promise<void> {
  const dialog = page.getByRole("dialog");
  await dialog.waitFor();
  await fill?.();
  await dialog.locator("button[type=submit]").click();
  const told = page.locator(".toast, .refused").filter({ hasNotText: new RegExp(`^${last.replace(/\W/g, ".")}$`) });
  const text = (await told.first().textContent()) ?? "";
  if (!done.test(text)) throw new Error(`${name}: ${text}`);
  last = text;
  await dialog.waitFor({ state: "detached" }).catch(() => problems.push(`the dialog of ${name} stays open`));
}

/** Every view with data whose every field is markup, in light, dark and narrow. */
async function views(): Promise<void> {
  const id = encodeURIComponent(task["conversation"] ?? "");
  const places: [string, string | RegExp][] = [
    ["#/conversations", "Window used"],
    [`#/conversations?q=${encodeURIComponent("harbour")}`, "Messages with"],
    ["#/conversations?sort=fill", "Window used"],
    ["#/problems", "looked through"],
    ["#/spend", "By day and model"],
    ["#/agents", "Calls, tokens and cost of 30 days"],
    ["#/agents?sort=cost", "Calls, tokens and cost of 30 days"],
    ["#/snapshots", "Restore"],
    [`#/c/${id}/window`, "stable prefix:"],
    [`#/c/${id}/window?open=policy`, "compaction.threshold_ratio"],
    [`#/c/${id}/window?open=tools`, /^\d+ tokens?$/],
    [`#/c/${id}/messages?seq=3`, "#3"],
    [`#/c/${id}/messages?q=harbour`, "hidden messages included"],
    [`#/c/${id}/messages?role=user&state=summarised`, "hidden messages included"],
    [`#/c/${id}/compactions`, "After: what stands for them"],
    [`#/c/${id}/time`, "Saved against the whole log"],
    [`#/c/${id}/compare`, "First difference"],
    [`#/c/${id}/live`, "Connected"],
    ["#/c/nobody/window", "There is no such conversation"],
    ["#/nowhere", "There is no such page"],
  ];
  const looks: [string, BrowserContextOptions][] = [
    ["light", { colorScheme: "light" }],
    ["dark", { colorScheme: "dark", reducedMotion: "reduce" }],
    ["narrow", { viewport: { width: 380, height: 800 } }],
  ];
  await Promise.all(looks.map(async ([look, options]) => {
    const page = await opened(options);
    for (const [hash, text] of places) {
      await see(page, hash, text);
      await page.waitForLoadState("load");
      await audit(page, hash, look);
    }
    await page.goto(`${url}/docs#append_messages`);
    await page.getByText("/v1/conversations/{conversation_id}/context", { exact: true }).first().waitFor();
    facts[`docs ${look}`] = await page.evaluate(() => Math.round(performance.now()));
    await page.locator(".operation[open] > .inside").first().waitFor();
    await page.locator(".operation[open] summary", { hasText: "Errors" }).click();
    await page.getByText("VALIDATION_ERROR").first().waitFor();
    await audit(page, "the API reference", look);
    await page.getByLabel("Filter").fill("redact");
    await page.getByText(/^[1-9] of /).waitFor();
    if (look === "light") {
      await page.goto(`${url}/inspector#/conversations`);
      await page.getByText("Window used").first().waitFor();
    }
    const state = await page.evaluate(() => ({ hacked: "hacked" in globalThis, markup: document.querySelectorAll("main script, main img, main iframe").length, cookies: document.cookie }));
    if (state.hacked || state.markup || state.cookies) problems.push(`${look}: ${JSON.stringify(state)}`);
    await page.context().close();
  }));
}

/** Each action, behind its confirmation, and the live events that follow. */
async function actions(): Promise<void> {
  const id = encodeURIComponent(task["conversation"] ?? "");
  const page = await opened();
  await see(page, `#/c/${id}/live`, "Connected");

  await page.getByRole("button", { name: "Compact", exact: true }).click();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Compact", exact: true }).click();
  await confirm(page, "Compact", /Compacted from/, async () => {
    await page.getByLabel("Target in tokens").fill("1000");
    await page.getByLabel("What the summary should keep").fill("The harbour.");
  });
  await page.locator(".events li.new", { hasText: "compacted" }).waitFor();
  facts["live"] = await page.locator(".events li.new .badge").allTextContents();

  await see(page, `#/c/${id}/compactions`, "Receipts");
  await page.locator("summary", { hasText: "Dry run" }).click();
  await page.getByLabel("sliding window").check();
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator(".run").nth(1).waitFor();
  facts["dry runs"] = await page.locator(".run h3").allTextContents();
  await page.getByRole("button", { name: "Undo" }).first().click();
  await confirm(page, "Undo", /undone/);

  await see(page, `#/c/${id}/messages?seq=2`, "#2");
  const message = page.getByRole("article", { name: "Message 2," });
  await message.getByRole("button", { name: "Pin", exact: true }).click();
  await confirm(page, "Pin", /Pinned/);
  await message.getByText("pinned").waitFor();
  await message.getByRole("button", { name: "Unpin" }).click();
  await confirm(page, "Unpin", /Unpinned/);
  await message.getByRole("button", { name: "Redact" }).click();
  await confirm(page, "Redact", /Redacted/);
  await message.getByText("redacted", { exact: true }).waitFor();

  await see(page, `#/c/${id}/messages?seq=${task["blob"]}`, `#${task["blob"]}`);
  await page.getByRole("article", { name: `Message ${task["blob"]},` }).getByRole("button", { name: "Read by lines" }).click();
  await page.getByRole("dialog").getByText("row 1 of the output").waitFor();
  await page.getByLabel("Find lines").fill("row 1999 ");
  await page.getByRole("button", { name: "Find", exact: true }).click();
  await page.getByRole("button", { name: /^line 1/ }).first().click();
  await page.locator("pre.lines", { hasText: "row 1999 of" }).waitFor();
  await page.keyboard.press("Escape");

  await see(page, `#/c/${id}/window`, "stable prefix:");
  await page.getByLabel("Format").selectOption("anthropic");
  await page.getByLabel("Context window").selectOption("4000");
  await page.getByText("of 3,", { exact: false }).first().waitFor();
  facts["preview"] = await page.evaluate(() => location.hash.split("?")[1]);
  await page.locator("a.cell").last().focus();
  await page.keyboard.press("ArrowLeft");
  facts["peek"] = await page.locator(".peek b").textContent();

  await page.getByRole("button", { name: "Snapshot" }).click();
  await confirm(page, "Snapshot", /saved/, () => page.getByLabel("What it is for").fill("<b>before</b>"));
  await page.getByRole("button", { name: "Clear" }).click();
  await confirm(page, "Clear", /cleared/);
  await see(page, "#/snapshots", "<b>before</b>");
  await page.getByRole("button", { name: /^Show its/ }).first().click();
  await page.locator(".contents li").first().waitFor();
  const [saved] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).first().click()]);
  facts["download"] = saved.suggestedFilename();
  await page.getByRole("button", { name: "Restore" }).first().click();
  await confirm(page, "Restore", /restored/);
  await see(page, `#/c/${id}/window`, "Fork");
  await page.getByRole("button", { name: "Fork" }).click();
  await confirm(page, "Fork", /This is the fork/, () => page.getByLabel("Last message of the fork").fill("4"));
  await page.getByText("4 messages").first().waitFor();
  await page.context().close();
}

/** From a symptom to its cause by links alone: a lost instruction, a cache break, a large result. */
async function causes(): Promise<void> {
  const id = encodeURIComponent(task["conversation"] ?? "");
  const page = await opened();
  const shows = async (text: string | RegExp): Promise<void> => page.getByText(text).first().waitFor();
  const follow = async (link: string): Promise<void> => page.getByRole("link", { name: link, exact: true }).first().click();

  await see(page, "#/conversations?q=Swahili", "Messages with");
  await page.locator(".hits a").first().waitFor();
  facts["listed"] = await page.locator("tbody tr").count();
  await page.locator(".hits a").first().click();
  await follow("summarised");
  await shows("The compaction that hides message 3");
  await shows("“Swahili” is not in the text that stands for the messages.");
  await page.locator(".sought mark").waitFor();
  facts["sought"] = await page.locator(".sought mark").allTextContents();
  facts["dropped"] = await page.locator(".dropped").textContent();
  await audit(page, "the compaction of a message");
  await follow("All compactions");
  await shows("Receipts");

  await see(page, `#/c/${id}/time`, "what changed");
  facts["epochs"] = await page.locator(".badge.due").allTextContents();
  await page.locator(".chart-legend li", { hasText: "Summaries" }).waitFor();
  facts["regions"] = (await page.locator(".chart-legend li").allTextContents()).slice(0, 3);
  facts["first calls"] = await page.locator("tr:has(.badge.due) td.cached").allTextContents();
  await page.locator(".chart .u-over").first().hover();
  facts["pointed"] = await page.locator(".readout").textContent();
  await follow("what changed");
  await shows(/^First difference: item /);
  facts["differs"] = await page.getByRole("heading", { name: /^First difference/ }).textContent();
  facts["changed"] = await page.locator(".diff li.changed ins").allTextContents();
  await audit(page, "what changed");

  const payload = async (link: string): Promise<string | null> => {
    await follow(link);
    await shows(/^The model received/);
    facts["items"] = await page.locator("article header a[href*=as_of] + .badge + a").first().textContent();
    await audit(page, `the ${link} payload`);
    await page.getByLabel("Search this conversation").fill("Swahili");
    await page.getByLabel("Search this conversation").press("Enter");
    await shows(/^“Swahili” is in/);
    return page.getByRole("status").first().textContent();
  };
  facts["later"] = await payload("later");
  // The oldest build of the list is from before the compaction.
  const builds = page.getByLabel("Show").locator("option");
  await builds.nth(3).waitFor({ state: "attached" });
  await page.getByLabel("Show").selectOption({ index: (await builds.count()) - 1 });
  await page.locator("article p mark").first().waitFor();
  facts["first"] = await page.getByRole("status").first().textContent();
  await page.getByLabel("Show").selectOption("");
  await shows("hidden messages included");
  await see(page, "#/conversations", "Window used");

  await see(page, `#/c/${id}/window`, /^Message \d+, a tool result of read,/);
  await audit(page, "the largest message");
  await follow("Open it");
  await page.locator("article.marked summary b", { hasText: "read" }).waitFor();
  facts["opened"] = await page.locator("article.marked .seq").textContent();
}

/** A payload that a provider refused, and tools that changed inside an epoch. */
async function refusal(): Promise<void> {
  const id = encodeURIComponent(task["conversation"] ?? "");
  const page = await opened();
  const first = async (selector: string): Promise<string> => ((await page.locator(selector).first().textContent()) ?? "").trim();
  await see(page, `#/c/${id}/window`, "See what was left out");
  facts["banner"] = await first(".banner strong");
  await see(page, `#/c/${id}/window?format=openai_responses`, "Sections or tools changed inside epoch 1, behind");
  await see(page, `#/c/${id}/time`, "of sections or tools");
  facts["change"] = await first("td .badge.ok");
  await page.locator(".chart-legend li", { hasText: "changed by an item" }).waitFor();
  await audit(page, "a change inside an epoch");
  await page.locator("tr:has(.badge.ok) a", { hasText: "what changed" }).click();
  await page.locator(".diff li.added", { hasText: "crane" }).first().waitFor();
  await page.getByRole("link", { name: "later", exact: true }).click();
  await page.getByText(/^The model received/).first().waitFor();
  await page.getByLabel("Search this conversation").fill("crane");
  await page.getByLabel("Search this conversation").press("Enter");
  facts["added"] = await first("summary:has-text('crane') b");
}

/** With keys in use: the page asks, keeps the key in the tab, and shows a reader no actions. */
async function keys(): Promise<void> {
  const page = await opened();
  await see(page, "#/conversations", "The service asks for an API key");
  await audit(page, "the question for a key");
  await page.getByLabel("Key", { exact: true }).fill("wrong");
  await page.getByRole("button", { name: "Open" }).click();
  await page.getByText("does not accept this key").waitFor();
  const seen = async (key: string): Promise<number> => {
    await page.getByLabel("Key", { exact: true }).fill(key);
    await page.getByRole("button", { name: "Open" }).click();
    await page.locator("tbody a").first().click();
    await page.getByText("stable prefix:").waitFor();
    return page.getByRole("button", { name: /^(Compact|Snapshot|Fork|Clear)$/ }).count();
  };
  facts["reader"] = await seen(task["reader"] ?? "");
  facts["kept"] = await page.evaluate(() => [sessionStorage.length, localStorage.length, document.cookie.length]);
  const other = await page.context().newPage();
  await other.goto(`${url}/inspector`);
  await other.getByText("The service asks for an API key").waitFor();
  await other.close();
  await page.getByRole("button", { name: "Forget key" }).click();
  await page.getByText("The service asks for an API key").waitFor();
  await page.evaluate(() => (location.hash = "#/conversations"));
  facts["owner"] = await seen(task["owner"] ?? "");
}

/** How long views take on a long conversation by the browser's own clocks, and what they cost. */
async function speed(): Promise<void> {
  const id = encodeURIComponent(task["conversation"] ?? "");
  const page = await opened();
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Performance.enable", { timeDomain: "threadTicks" });
  await devtools.send("Network.enable");
  let [requests, bytes] = [0, 0];
  devtools.on("Network.requestWillBeSent", () => (requests += 1));
  devtools.on("Network.dataReceived", ({ dataLength }) => (bytes += dataLength));
  await page.addInitScript(() => {
    const longest = { longest: 0 };
    Object.assign(globalThis, { tasks: longest });
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) longest.longest = Math.max(longest.longest, entry.duration);
    }).observe({ type: "longtask", buffered: true });
  });
  const busy = async (): Promise<number> => (await devtools.send("Performance.getMetrics")).metrics.find(({ name }) => name === "TaskDuration")?.value ?? 0;
  const took = async (name: string, hash: string, text: string, start: number): Promise<void> => {
    const [tasks, asked, received] = [await busy(), requests, bytes];
    await see(page, hash, text);
    const ms = Math.round(await page.evaluate((from) => performance.now() - from, start));
    const longest = Math.round(await page.evaluate(() => (globalThis as unknown as { tasks: { longest: number } }).tasks.longest));
    facts[name] = { ms, cpu: Math.round((await busy() - tasks) * 1000), longest, requests: requests - asked, kb: Math.round((bytes - received) / 1000) };
  };
  await took("first view", `#/c/${id}/window`, "stable prefix:", 0);
  await took("messages", `#/c/${id}/messages`, `#${task["head"]}`, await page.evaluate(() => performance.now()));
  facts["scroll"] = await page.evaluate(async () => {
    const frame = document.querySelector(".transcript.frame") as HTMLElement;
    const gaps: number[] = [];
    let last = performance.now();
    for (let step = 0; step < 60; step += 1) {
      frame.scrollTop = (frame.scrollHeight * (step * 37 % 60)) / 60;
      await new Promise(requestAnimationFrame);
      gaps.push(performance.now() - last);
      last = performance.now();
    }
    gaps.sort((a, b) => a - b);
    return { median: Math.round(gaps[30] ?? 0), p95: Math.round(gaps[57] ?? 0), rows: document.querySelectorAll(".slot").length };
  });
  await page.getByLabel("Go to message").fill("5000");
  await page.getByLabel("Go to message").press("Enter");
  await page.getByText("#5000", { exact: true }).waitFor();
  facts["heap"] = await page.evaluate(() => Math.round(((performance as unknown as { memory?: { usedJSHeapSize: number } }).memory?.usedJSHeapSize ?? 0) / 1e6));
}

try {
  const tasks: Record<string, () => Promise<void>> = { views, actions, causes, refusal, keys, speed };
  const run = tasks[task["name"] ?? ""];
  if (run === undefined) throw new Error(`no task ${task["name"]}`);
  await run();
} catch (error) {
  problems.push(`stopped: ${error instanceof Error ? error.message : String(error)}`);
}
await browser.close();
console.log(JSON.stringify({ problems, facts }));
