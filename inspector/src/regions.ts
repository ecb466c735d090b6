// The regions of a payload, in the order in which they are drawn.

import type { Schemas } from "./api.ts";

export interface Region {
  name: string;
  kind: string;
  tokens: number;
}

export const regionsOf = (tokens: Schemas["PayloadTokens"]): Region[] => [
  { name: "System prompt", kind: "system", tokens: tokens.system_prompt },
  { name: "Skills", kind: "skills", tokens: tokens.skill_prompts },
  { name: "Tools", kind: "tools", tokens: tokens.tool_descriptions },
  { name: "Summaries", kind: "summary", tokens: tokens.summary },
  { name: "Messages", kind: "history", tokens: tokens.conversation },
];
