// Reads messages of a log by seq.

import { api, at, good, type Message } from "./api.ts";

const PAGE = 500;

/** Return the messages in `[start, end)`; seqs have no gaps, so that pages are read at once. */
export async function readRange(id: string, start: number, end: number): Promise<Message[]> {
  const starts = Array.from({ length: Math.ceil((end - start) / PAGE) }, (_, page) => start + page * PAGE);
  const pages = await Promise.all(starts.map((first) => readPage(id, first, Math.min(first + PAGE, end))));
  return pages.flat();
}

/** Return the messages of a part; a page of large ones ends early. */
async function readPage(id: string, start: number, end: number): Promise<Message[]> {
  const messages: Message[] = [];
  let after = start - 1;
  while (after < end - 1) {
    const query = { after_seq: after, before_seq: end, limit: end - 1 - after, content: "view" as const };
    const page = await good(api.GET("/v1/conversations/{conversation_id}/messages", { params: { ...at(id), query } }));
    messages.push(...(page.data as Message[]));
    const last = page.data.at(-1);
    if (last === undefined) break;
    after = last.seq;
  }
  return messages;
}
