// A stored tool output: read by lines, and searched by a pattern.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { api, good, type Schemas } from "../api.ts";
import { bytes, plural } from "../format.ts";
import { useResource } from "../resource.ts";
import { Curl, Dialog, Failed, Field, Loading } from "../ui.tsx";

const LINES = 200;

export function Blob({ id, output, close }: { id: string; output: Schemas["ToolOutputRef"]; close: () => void }): JSX.Element {
  const path = { conversation_id: id, ref_id: output.id };
  const [offset, setOffset] = useState(0);
  const [pattern, setPattern] = useState("");
  const lines = useResource(() => good(api.GET("/v1/conversations/{conversation_id}/blobs/{ref_id}/lines", { params: { path, query: { offset, limit: LINES } } })), ["lines", output.id, offset]);
  const url = `/v1/conversations/${encodeURIComponent(id)}/blobs/${encodeURIComponent(output.id)}`;
  return (
    <Dialog title="Tool output" close={close} wide>
      <form class="filters" role="search" onSubmit={(event) => { event.preventDefault(); setPattern(String(new FormData(event.target as HTMLFormElement).get("pattern") ?? "")); }}>
        <Field label="Find lines (regular expression)"><input name="pattern" type="search" placeholder="error|warn" /></Field>
        <button type="submit">Find</button>
        <p class="hint">{bytes(output.byte_size)}, {plural(output.line_count, "line")} <Curl path={pattern ? `${url}/grep?pattern=${encodeURIComponent(pattern)}` : `${url}/lines?offset=${offset}&limit=${LINES}`} /></p>
      </form>
      {pattern && <Matches path={path} pattern={pattern} go={(line) => { setOffset(Math.max(0, line - 10)); setPattern(""); }} />}
      {lines.error ? <Failed error={lines.error} /> : !lines.data ? <Loading what="lines" /> : (
        <>
          <pre class="lines" tabIndex={0}>{lines.data.text}</pre>
          <footer>
            <button type="button" disabled={offset === 0} onClick={() => setOffset(Math.max(0, offset - LINES))}>Earlier lines</button>
            <span class="muted">{lines.data.text ? `${lines.data.offset + 1}–${lines.data.next_offset ?? lines.data.line_count} of ${lines.data.line_count}` : "no lines"}</span>
            <button type="button" disabled={lines.data.next_offset === null} onClick={() => setOffset(lines.data?.next_offset ?? 0)}>Later lines</button>
          </footer>
        </>
      )}
    </Dialog>
  );
}

function Matches({ path, pattern, go }: { path: { conversation_id: string; ref_id: string }; pattern: string; go: (line: number) => void }): JSX.Element {
  const found = useResource(() => good(api.GET("/v1/conversations/{conversation_id}/blobs/{ref_id}/grep", { params: { path, query: { pattern, before: 0, after: 0, limit: 50, ignore_case: true } } })), ["grep", path.ref_id, pattern]);
  if (found.error) return <Failed error={found.error} />;
  if (!found.data) return <Loading what="matches" />;
  if (found.data.matches.length === 0) return <p class="muted" role="status">No line matches.</p>;
  return (
    <ol class="matches">{found.data.matches.map((match) => (
      <li key={match.line}><button type="button" class="plain" onClick={() => go(match.line)}>line {match.line}</button> <code>{match.text}</code></li>
    ))}{found.data.truncated && <li class="muted">There are more.</li>}</ol>
  );
}
