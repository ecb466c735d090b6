// Small parts that the views are made of.

import type { ComponentChildren, JSX } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { BASE, type Refused } from "./api.ts";
import { ago, compact, count, percent, time } from "./format.ts";
import { apiKey, mayWrite, tell } from "./state.ts";

export function Copy({ text, label = "Copy", shown }: { text: string; label?: string; shown?: string | undefined }): JSX.Element {
  const copy = (): void => {
    navigator.clipboard.writeText(text).then(
      () => tell("Copied."),
      () => tell("The browser does not let the page copy.", true),
    );
  };
  return (
    <button type="button" class="copy" title={`${label}: ${text}`} onClick={copy}>
      {shown !== undefined && <code>{shown}</code>}
      <svg width="12" height="12" viewBox="0 0 12 12" fill="none" stroke="currentColor" stroke-width="1.3" aria-hidden="true"><rect x="4" y="4" width="7" height="7" rx="1.5" /><path d="M8 4V2.5A1.5 1.5 0 0 0 6.5 1h-4A1.5 1.5 0 0 0 1 2.5v4A1.5 1.5 0 0 0 2.5 8H4" /></svg>
      <span class="sr">{label}</span>
    </button>
  );
}

/** A request as a curl command, with a line for each part of a body. */
export function curlOf(path: string, method = "GET", body?: unknown): string {
  const quoted = (value: string): string => `'${value.replaceAll("'", `'\\''`)}'`;
  return [
    "curl",
    ...(method === "GET" ? [] : ["-X", method]),
    quoted(`${BASE}${path}`),
    ...(apiKey.value ? ["-H", `"Authorization: Bearer $CONTEXT_API_KEY"`] : []),
    ...(body === undefined ? [] : ["-H", quoted("Content-Type: application/json"), "-d", quoted(JSON.stringify(body, null, 2))]),
  ].join(" ");
}

/** A button that copies the request of a view as a curl command. */
export const Curl = ({ path }: { path: string }): JSX.Element => <Copy text={curlOf(path)} label="Copy as curl" shown="curl" />;

export function When({ iso }: { iso: string | null }): JSX.Element {
  return iso === null ? <span class="muted">never</span> : <time dateTime={iso} title={time(iso)}>{ago(iso)}</time>;
}

export function Loading({ what }: { what: string }): JSX.Element {
  return <p class="loading" role="status">Reading {what}…</p>;
}

export function Failed({ error, retry }: { error: Refused; retry?: () => void }): JSX.Element {
  return (
    <div class="failed" role="alert">
      <strong>{error.problem?.title ?? "Not available"}</strong>
      <p>{error.message}</p>
      {error.status === 0 && <p>Check that the service runs, then try again.</p>}
      {error.problem && <p class="muted">Request <code>{error.problem.request_id}</code></p>}
      {retry && (error.status === 0 || error.status >= 500) && <button type="button" onClick={retry}>Try again</button>}
    </div>
  );
}

export const Logo = (): JSX.Element => (
  <svg width="20" height="20" viewBox="0 0 20 20" aria-hidden="true">
    <rect x="1" y="2" width="5" height="16" rx="1.5" class="l1" />
    <rect x="7.5" y="2" width="3" height="16" rx="1.5" class="l2" />
    <rect x="12" y="2" width="7" height="16" rx="1.5" class="l3" />
  </svg>
);

/** Says that there is nothing and what to do; `page` where nothing else is on the page. */
export function Empty({ title, children, page }: { title: string; children?: ComponentChildren; page?: boolean }): JSX.Element {
  return <div class="empty">{page ? <h1>{title}</h1> : <strong>{title}</strong>}{children && <p>{children}</p>}</div>;
}

export function Badge({ kind, children }: { kind: string; children: ComponentChildren }): JSX.Element {
  return <span class={`badge ${kind}`}>{children}</span>;
}

export function Fact({ name, children, hint }: { name: string; children: ComponentChildren; hint?: string }): JSX.Element {
  return <div class="fact" title={hint}><dt>{name}</dt><dd>{children}</dd></div>;
}

/** The use of a context window as a bar, with its pressure. */
export function Pressure({ used, window, level }: { used: number; window: number; level: string | null }): JSX.Element {
  const share = window > 0 ? (100 * used) / window : 0;
  return (
    <div class="pressure" title={`${count(used)} of ${count(window)} tokens`}>
      <div class={`meter ${level ?? "ok"}`} role="img" aria-label={`${percent(share)} of the window used, pressure ${level ?? "unknown"}`}>
        <div style={{ width: `${Math.min(100, share)}%` }} />
      </div>
      <span class="num">{percent(share)}</span>
      {level !== null && level !== "ok" && <Badge kind={level}>{level}</Badge>}
    </div>
  );
}

/** Two counts of tokens as bars on one scale. */
export function BeforeAfter({ before, after }: { before: number; after: number }): JSX.Element {
  const most = Math.max(before, after, 1);
  const saved = before > 0 ? (100 * (before - after)) / before : 0;
  return (
    <div class="before-after">
      <span>before</span><div class="bar"><div class="was" style={{ width: `${(100 * before) / most}%` }} /></div><span class="num">{compact(before)}</span>
      <span>after</span><div class="bar"><div class="is" style={{ width: `${(100 * after) / most}%` }} /></div>
      <span class="num">{compact(after)}{saved !== 0 && <em> {saved > 0 ? "−" : "+"}{percent(Math.abs(saved))}</em>}</span>
    </div>
  );
}

/** The words that a search requires. */
const wordsOf = (query: string): string[] => query.match(/[^\s"]+/g) ?? [];

/** Whether a text has all words of a search, in any case. */
export const hasWords = (text: string, query: string): boolean => wordsOf(query).every((word) => text.toLowerCase().includes(word.toLowerCase()));

/** Text with the words of a search marked. */
export function Marked({ text, query }: { text: string; query: string }): JSX.Element {
  const wanted = wordsOf(query);
  if (!wanted.length) return <>{text}</>;
  const escaped = wanted.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const pieces = text.split(new RegExp(`(${escaped.join("|")})`, "gi"));
  return <>{pieces.map((piece, index) => (index % 2 ? <mark key={index}>{piece}</mark> : piece))}</>;
}

export function Dialog({ title, close, children, wide }: { title: string; close: () => void; children: ComponentChildren; wide?: boolean }): JSX.Element {
  const frame = useRef<HTMLDialogElement>(null);
  const id = useId();
  useLayoutEffect(() => frame.current?.showModal(), []);
  return (
    <dialog ref={frame} class={wide ? "wide" : ""} aria-labelledby={id} onClose={close}
      onClick={(event) => event.target === frame.current && frame.current?.close()}>
      <div class="dialog">
        <header><h2 id={id}>{title}</h2><button type="button" class="plain" aria-label="Close" onClick={() => frame.current?.close()}>✕</button></header>
        {children}
      </div>
    </dialog>
  );
}

/** A button for a change: it asks first, and is not there for keys that only read. */
export function Action({ name, title, explain, danger, run, children, primary }: { name: string; title: string; explain: string; danger?: boolean; primary?: boolean; run: (form: FormData) => Promise<string>; children?: ComponentChildren }): JSX.Element | null {
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [refused, setRefused] = useState("");
  if (!mayWrite.value) return null;
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    setBusy(true);
    setRefused("");
    run(new FormData(event.target as HTMLFormElement))
      .then(
        (done) => {
          setOpen(false);
          tell(done);
        },
        (error: Error) => setRefused(error.message),
      )
      .finally(() => setBusy(false));
  };
  return (
    <>
      <button type="button" class={danger ? "danger" : primary ? "primary" : ""} onClick={() => setOpen(true)}>{name}</button>
      {open && (
        <Dialog title={title} close={() => setOpen(false)}>
          <form onSubmit={submit}>
            <p>{explain}</p>
            {children}
            {refused && <p class="refused" role="alert">{refused}</p>}
            <footer>
              <button type="button" onClick={() => setOpen(false)}>Cancel</button>
              <button type="submit" class={danger ? "danger" : "primary"} disabled={busy}>{busy ? "…" : name}</button>
            </footer>
          </form>
        </Dialog>
      )}
    </>
  );
}

export function Field({ label, children }: { label: string; children: ComponentChildren }): JSX.Element {
  return <label class="field"><span>{label}</span>{children}</label>;
}

export function More({ more, loading }: { more: (() => void) | undefined; loading: boolean }): JSX.Element | null {
  if (!more && !loading) return null;
  return <p class="more"><button type="button" onClick={more} disabled={!more}>{loading ? "Reading…" : "Show more"}</button></p>;
}

/** The head of a column by which a list is sorted, the largest first. */
export function Sorted({ name, by, sorted, sort, num, size = "" }: { name: string; by: string; sorted: string; sort: (by: string) => void; num?: boolean; size?: string }): JSX.Element {
  const on = sorted === by;
  return (
    <th scope="col" class={num ? `num ${size}` : size} aria-sort={on ? "descending" : undefined}>
      <button type="button" class="plain sort" onClick={() => sort(on ? "" : by)}>{name}<span aria-hidden="true">{on ? " ↓" : ""}</span></button>
    </th>
  );
}
