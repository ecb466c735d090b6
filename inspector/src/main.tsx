// The page: its frame, the question for a key, and the view of the place.

import "./styles.css";
import "uplot/dist/uPlot.min.css";
import { render } from "preact";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { api, good } from "./api.ts";
import { link, place } from "./router.ts";
import { apiKey, changes, keepKey, keepTheme, keyWanted, mayWrite, notice, showTheme, theme, THEMES } from "./state.ts";
import { Empty, Logo } from "./ui.tsx";
import { Agents } from "./views/agents.tsx";
import { ConversationPage } from "./views/conversation.tsx";
import { Conversations } from "./views/conversations.tsx";
import { Problems } from "./views/problems.tsx";
import { Spend } from "./views/spend.tsx";
import { Snapshots } from "./views/snapshots.tsx";

const PLACES: [string, string][] = [
  ["conversations", "Conversations"],
  ["problems", "Problems"],
  ["spend", "Spend"],
  ["agents", "Agents"],
  ["snapshots", "Snapshots"],
];

function View(): JSX.Element {
  const [first, second, third] = place.value.parts;
  if (first === "conversations") return <Conversations />;
  if (first === "problems") return <Problems />;
  if (first === "spend") return <Spend />;
  if (first === "agents") return <Agents />;
  if (first === "snapshots") return <Snapshots />;
  if (first === "c" && second !== undefined) return <ConversationPage id={second} view={third ?? "window"} />;
  return <Empty page title="There is no such page."><a href="#/conversations">All conversations</a></Empty>;
}

function KeyForm(): JSX.Element {
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    keepKey(String(new FormData(event.target as HTMLFormElement).get("key") ?? "").trim());
  };
  return (
    <form class="key card" onSubmit={submit}>
      <h1>API key</h1>
      <p>{apiKey.value ? "The service does not accept this key." : "The service asks for an API key."} It is kept in this tab only, and forgotten when the tab is closed.</p>
      <label class="field"><span>Key</span><input name="key" type="password" autocomplete="off" required autofocus /></label>
      <p class="muted">A key made with <code>context-service keys create --read-only</code> is enough to look.</p>
      <button type="submit" class="primary">Open</button>
    </form>
  );
}

function Page(): JSX.Element {
  const here = place.value.parts[0] === "c" ? "conversations" : place.value.parts[0];
  const key = apiKey.value;
  useEffect(() => {
    good(api.GET("/v1/caller")).then(
      (caller) => (mayWrite.value = !caller.read_only),
      () => (mayWrite.value = false),
    );
  }, [key, mayWrite.value ? 0 : changes.value]); // asked again until something may be changed
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to content</a>
      <header class="top">
        <a class="brand" href="#/conversations"><Logo />Context <b>inspector</b></a>
        <nav aria-label="Main">
          {PLACES.map(([name, title]) => (
            <a key={name} href={link([name])} aria-current={here === name ? "page" : undefined}>{title}</a>
          ))}
          <a href="docs">API</a>
        </nav>
        <span class="grow" />
        {key && <button type="button" class="plain" onClick={() => { keepKey(""); }}>Forget key</button>}
        <button type="button" class="plain" title={`Colours: ${theme.value}`} onClick={() => keepTheme(THEMES[theme.value])}>
          <span aria-hidden="true">◐</span> {theme.value}<span class="sr"> colours, change</span>
        </button>
        <button type="button" class="plain" title="Read again" onClick={() => (changes.value += 1)}><span aria-hidden="true">↻</span><span class="sr">Read again</span></button>
      </header>
      <main id="main" tabIndex={-1}>{keyWanted.value ? <KeyForm /> : <View />}</main>
      <div class="toasts" role="status">{notice.value && <p class={notice.value.failed ? "toast bad" : "toast"}>{notice.value.text}</p>}</div>
    </>
  );
}

showTheme();
const root = document.getElementById("app");
if (root) render(<Page />, root);
