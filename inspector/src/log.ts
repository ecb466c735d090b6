// Reads messages of a log by seq.

import { api, at, good, type Message } from "./api.ts";

/** Return the messages in `[start, end)`, read in as many pages as their sizes need. */
export async function readRange(id: string, start: number, end: number): Promise<Message[]> {
  const messages: Message[] = [];
  let after = start - 1;
  while (after < end - 1) {
    const page = await good(
      api.GET("/v1/conversations/{conversation_id}/messages", {
        params: {
          ...at(id),
          query: { after_seq: after, before_seq: end, limit: Math.min(500, end - 1 - after), content: "view" },
        },
      }),
    );
    messages.push(...(page.data as Message[]));
    const last = page.data.at(-1);
    if (last === undefined) break;
    after = last.seq;
  }
  return messages;
}
