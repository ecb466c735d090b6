// The Markdown of answers, as elements: no HTML of a message ever becomes part of the page.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { count } from "./format.ts";

/** How much of a long text is shown at first. */
const LINES = 12;
const CHARACTERS = 1600;

const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|\[[^\]\n]+\]\([^)\s]+\))/g;

/** Code, bold words and links of a line; a link is shown with its address and not followed. */
function inline(text: string): (string | JSX.Element)[] {
  return text.split(INLINE).map((piece, index) => {
    if (index % 2 === 0) return piece;
    if (piece.startsWith("`")) return <code key={index}>{piece.slice(1, -1)}</code>;
    if (piece.startsWith("**")) return <strong key={index}>{piece.slice(2, -2)}</strong>;
    const [, words = "", address = ""] = /^\[(.*)\]\((.*)\)$/.exec(piece) ?? [];
    return <span key={index} title={address}>{words} <span class="muted">({address})</span></span>;
  });
}

function block(lines: string[], key: number): JSX.Element {
  const [first = ""] = lines;
  const heading = /^(#{1,6}) (.*)/.exec(first);
  if (heading && lines.length === 1) return <p key={key} class={`heading h${heading[1]?.length}`}>{inline(heading[2] ?? "")}</p>;
  if (lines.every((line) => /^\s*([-*+]|\d+[.)]) /.test(line))) {
    return <ul key={key} class="md">{lines.map((line, index) => {
      const [, indent = "", mark = "", rest = ""] = /^(\s*)([-*+]|\d+[.)]) (.*)/.exec(line) ?? [];
      return <li key={index} style={{ marginLeft: `${indent.length * 6}px` }}>{/\d/.test(mark) ? `${mark} ` : "• "}{inline(rest)}</li>;
    })}</ul>;
  }
  return <p key={key} class="pre">{inline(lines.join("\n"))}</p>;
}

const kindOf = (line: string): string => (/^#{1,6} /.test(line) ? `heading ${line}` : /^\s*([-*+]|\d+[.)]) /.test(line) ? "list" : "text");

export function Markdown({ text }: { text: string }): JSX.Element {
  const shown: JSX.Element[] = [];
  // Every second piece is between fences.
  text.split(/^```.*$/m).forEach((piece, index) => {
    if (index % 2) {
      shown.push(<pre key={`code${index}`} tabIndex={0}>{piece.replace(/^\n|\n$/g, "")}</pre>);
      return;
    }
    let lines: string[] = [];
    const close = (): void => {
      if (lines.length) shown.push(block(lines, shown.length));
      lines = [];
    };
    for (const line of piece.split("\n")) {
      if (!line.trim()) close();
      else if (/^\s{2,}/.test(line) && kindOf(line) === "text" && kindOf(lines[0] ?? "") === "list") lines.push(`${lines.pop()} ${line.trim()}`);
      else {
        if (lines.length && kindOf(line) !== kindOf(lines[0] ?? "")) close();
        lines.push(line);
      }
    }
    close();
  });
  return <div class="markdown">{shown}</div>;
}

export function LongText({ text }: { text: string }): JSX.Element {
  const [whole, setWhole] = useState(false);
  const lines = text.split("\n");
  const isLong = lines.length > LINES || text.length > CHARACTERS;
  const shown = whole || !isLong ? text : `${lines.slice(0, LINES).join("\n").slice(0, CHARACTERS)}…`;
  return (
    <>
      <Markdown text={shown} />
      {isLong && <button type="button" class="plain small" aria-expanded={whole} onClick={() => setWhole(!whole)}>{whole ? "Show less" : `Show all ${count(text.length)} characters`}</button>}
    </>
  );
}
