"""How providers phrase errors about the size of a request. [compaction.overflow-errors]

A pattern is matched against a text in lower case, without quotes, backticks and backslashes, with
single spaces. `<name>` in it is a number. Patterns have no unbounded repetition, so that a search
is linear in the text. The comments name the providers, and where a phrasing was recorded;
`provider_errors/` of the tests has the errors.
"""

from __future__ import annotations

import re
from typing import Final


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern; the number `<name>` becomes the group of that name."""
    return re.compile(re.sub(r"(?<!\?P)<(\w+)>", r"(?P<\1>\\d[\\d,]{0,15})", pattern))


_SETTING = r"max_?(?:completion_?|output_?|new_?)?tokens"

CODE: Final = re.compile(
    r"\b(?:context_length_exceeded|model_context_window_exceeded"  # OpenAI, Groq; Anthropic, Zhipu
    r"|contextwindowexceedederror|context_window_exceeded(?:_error)?"  # LiteLLM
    r"|exceed_context_size(?:_error)?|model_max_prompt_tokens_exceeded"  # llama.cpp, Copilot
    r"|context_limit_exceeded|max_context_length_exceeded|tokens_too_long"
    r"|context_too_long|prompt_too_long|input_too_long|token_quantity_exceeded)\b"
)
"""Codes of an input that is too long, as words of any field or text."""

WEAK_CODE: Final = re.compile(r"request_too_large|tokens_limit_reached")  # Anthropic, GitHub Models
"""Codes that say this too, unless the text is about a rate, a quota or a file."""

FIELD_CODES: Final = frozenset({"1261", "1039"})  # Zhipu (zeroclaw#4124), MiniMax (MiniMax-01#15)
"""Numbers that are a code of an input that is too long in a field for codes only."""

RATE: Final = re.compile(
    # OpenAI, Groq, Cerebras, Anthropic, Bedrock: continuedev/continue#10218, microsoft/autogen#198
    r"\bper[ -](?:second|sec|minute|min|hour|day|week|month)\b|/ ?(?:sec|min|hour|day)\b"
    r"|\b[tr]p[md]\b|\b(?:daily|hourly|weekly|monthly)\b"
    r"|rate[ _-]?limit|\bquota|too many requests|too many tokens processed"
    # Bedrock, Azure, Gemini, Vertex AI, Mistral
    r"|throttl|\bplease wait\b|try again (?:in|later)\b|retry (?:after|in)\b"
    r"|resource[_ ](?:has been )?exhausted|overloaded|capacity exceeded|concurren"
    # OpenRouter, Zhipu, DeepSeek: payments
    r"|\bcredits?\b|can only afford|\bbilling\b|\bbalance\b|\barrears\b"
    # Anthropic: anthropics/claude-code#27944, Wei-Shaw/sub2api#572
    r"|\b(?:this|your) (?:current )?(?:plan|subscription|tier)\b|extra usage is required"
    r"|\b(?:this|your|for) (?:organization|account|workspace|project|api key)\b"
    # OpenRouter and gateways: RooCodeInc/Roo-Code#515, MCPJam/inspector#1287
    r"|\bkeys? (?:(?:token|spend|credit|usage) )?limit\b|\b(?:this|your|for the) (?:api )?key\b"
    r"|每(?:秒|分钟|小时|天|日|月)|速率|频率|限流|额度|余额|欠费|稍后"
)
"""Limits on a rate, a quota, a plan or a payment."""

_MEDIA_COUNTS = (
    # Anthropic: anthropics/claude-code#23392, anthropics/claude-code#3397
    r"too (?:many|much) (?:images|media|documents)|many-image requests|\bpdf pages\b"
    r"|\bmax(?:imum)? (?:number )?of (?:\d+ )?(?:images|media|files)"
)
MEDIA_COUNT: Final = re.compile(_MEDIA_COUNTS)
"""Too many images, or too large ones for so many."""

MEDIA: Final = re.compile(
    _MEDIA_COUNTS
    # Anthropic: anthropics/claude-code#39534, #12064, #24630, gptme/gptme#185
    + r"|could not process (?:image|pdf|document|file)|image\.source\.[\w.]{1,40}:"
    r"|specified using the [\w/.+-]{1,40} media type|does not match the provided media type"
    r"|(?<!of )\b(?:image|file|attachment|audio|video|document|pdf)s?\b(?: \w{1,20}){0,3} "
    r"(?:exceeds?|too large|too big|too long)\b|\bimage dimensions\b|\bpixels\b"
    # OpenAI: vercel/ai#1544, CosmosShadow/gptpdf#6
    r"|uploaded an unsupported image|not represent a valid image|invalid_image|image_parse_error"
    r"|invalid_base64|(?:failed to|error while) download|invalid (?:image|audio|file)[ _]"
    # Gemini: google-gemini/gemini-cli#5064, danny-avila/LibreChat#6593
    r"|unable to process input (?:image|video|audio|file)|provided image is not valid"
    r"|inline_?data[^:]{0,60}base64|base64 decoding failed|unsupported mime type"
)
"""Media that a provider refuses: what they are, their size or their number."""

REASONING: Final = re.compile(
    # Anthropic: platform.claude.com preserved-thinking, anthropics/claude-code#10199
    r"invalid (?:signature|data) in (?:redacted_)?thinking block|thinking\.signature: "
    r"|bound to a different (?:conversation|account|model|organi[sz]ation)"
    r"|thinking blocks in the latest assistant message cannot be modified"
    r"|block in an assistant message cannot be thinking"
    # OpenAI, Azure: openai/codex#8426, openai/openai-python#2558
    r"|invalid_encrypted_content|encrypted[ _]content is not supported"
    r"|encrypted[ _]content\b.{0,400}could not be (?:verified|decrypted)"
    r"|provided without its required (?:following|reasoning) item"
    # xAI; Gemini: google-gemini/gemini-cli#13820
    r"|(?:could not|failed to|unable to) decrypt\b.{0,60}(?:encrypted|reasoning)"
    r"|(?:invalid|corrupted) thought[ _]signature|thought[ _]signature is (?:not valid|invalid)"
    # Groq, Cerebras: sst/opencode#1516
    r"|(?:reasoning_content|reasoning_details|thinking_blocks)\b.{0,80}(?:unsupported"
    r"|not supported|not permitted|not allowed|unrecognized|unexpected)"
    # any other
    r"|(?:unknown|unrecognized|unsupported|unexpected|extra)\b.{0,40}\b(?:reasoning_content"
    r"|reasoning_details|thinking_blocks)"
    r"|(?:reasoning|thinking)(?: content)? (?:block|item)s?\b.{0,60}"
    r"(?:not supported|unsupported|could not be verified)"
)
"""Reasoning or an encrypted item of an earlier message that a provider does not take back."""

OTHERS: Final = re.compile(
    # OpenAI, Voyage: vishalmysore/Tools4AI#16, assafelovic/gpt-researcher#1500
    r"\btools\b[^.]{0,40}array too long|\bmax(?:imum)? of \d+ tools"
    r"|unsupported parameter|is not supported with this model"
    r"|\b(?:in|per|this|your|submitted) (?:(?:a|the) )?batch\b|max_tokens_per_request"
    r"|(?:文件|图片|图像|附件|音频|视频)[^.。]{0,12}(?:过大|太大|超过|超出)"
)
"""Limits of tools, and other errors that name a size."""

_SUMS = [
    # OpenAI, Azure, DeepSeek, OpenRouter, vLLM: ChatGPTNextWeb/NextChat#3195, Aider-AI/aider#3721
    r"maximum context length is <window> tokens?.{0,20}?you requested (?:about )?[\d,]{1,16}"
    r" ?tokens \((?P<parts>[^()]{1,200})\)",
    # Anthropic: continuedev/continue#8454
    r"input length and (?P<setting>max_tokens) exceed context limit: <input> \+ <output>"
    r" > <window>",
    # vLLM: claude-code-best/claude-code#272, vllm-project/vllm#33425, AIDotNet/OpenCowork#82
    r"is too (?P<setting>large): <output>\. this models maximum context length is <window> tokens"
    r" and your request has <input> input tokens",
    r"maximum context length is <window> tokens\. however, your request has <input> input"
    r" tokens plus <output> (?P<setting>max_tokens)",
    r"maximum context length is <window> tokens\. however, you requested <output> output"
    r" tokens and your prompt contains (?:at least )?<input> input tokens",
    # vLLM, NVIDIA NIM: Kilo-Org/kilocode#8698
    r"you passed <input> input tokens and requested <output> output tokens\. however, the"
    r" models context length is only <window> tokens",
    # TGI, Together: huggingface/chat-ui#327, stanford-crfm/helm#2079
    r"inputs tokens \+ (?P<setting>max_new_tokens) must be <= <window>\. given: <input> inputs"
    r" tokens and <output> max_new_tokens",
    # LiteLLM, SGLang: PrimeIntellect-ai/prime-agent#2086
    r"maximum context length of <window> tokens\. you requested a total of [\d,]{1,16}"
    r" tokens: <input> tokens from the input messages and <output> tokens for the completion",
]
SUMS: Final = list(map(_compiled, _SUMS))
"""Sums of input and output, with the groups `window`, `input` and `output`.

The group `setting` is there where the error names the setting of the output limit. The group
`parts` has several numbers, of which the one of the completion is the output.
"""

_OUTPUTS = [
    # OpenAI, Volcengine: ChatGPTNextWeb/NextChat#3195, yiliqi78/TOKENICODE#3
    rf"{_SETTING} is too large: <requested>\. this model supports at most <limit>",
    rf"{_SETTING}(?: specified in the request (?:is|are) not valid)?: integer above"
    r" maximum value[.,] expected a value <= <limit>(?:, but got <requested>)?",
    # Anthropic: anthropics/claude-code#24451
    r"max_tokens: <requested> > <limit>, which is the maximum allowed number of output",
    # Bedrock: vercel/ai#2772, langchain-ai/langchain#9697
    r"maximum tokens you requested exceeds? the model limit of <limit>",
    r"malformed input request: (?:#/[\w/]{1,80}: )?<requested> is not less or equal to"
    r" (?P<limit>\d{3,9})",
    # Vertex AI: BerriAI/litellm#10548
    r"maxoutputtokens value of <requested> but the supported range is from 1 \(inclusive\)"
    r" to <beyond> \(exclusive\)",
    # Groq: khoj-ai/khoj#1236; DeepSeek, DashScope: deepseek-ai/DeepSeek-V3#69
    rf"{_SETTING}(?: for \S{{1,100}})? must be less than or equal to <limit>",
    r"range of max_tokens (?:is|should be) \[\d+, ?<limit>\]",
    # Ollama, Databricks: DaviRain-Su/hyper-grok-build#44, databricks-sdk-go#1183
    r"max_tokens \(<requested>\) exceeds (?:the )?models maximum output tokens \(<limit>\)",
    r"max_tokens \(<requested>\) cannot exceed <limit>",
    # Fireworks, Scaleway: nullclaw/nullclaw#231, scaleway/docs-content#4858
    r"max_tokens > <limit> must have stream",
    rf"{_SETTING} is limited for this model",
    # any other
    rf"(?<!\+ )(?<!and )(?<!plus )(?:\b{_SETTING}|max(?:imum)? output tokens)\b[^.;]{{0,60}}?"
    r"(?:too (?:large|big|high)|exceed"
    r"|\bmust be (?:less|smaller|at most|below|between|<|≤)"
    r"|\bshould be (?:less|smaller|at most|below|between|<)"
    r"|\bcannot be (?:greater|larger)|\bat most\b"
    r"|\b(?:greater|larger|higher) than (?:the )?(?:max|limit|model))"
    r"(?:[^.;\d]{0,40}(?:\d and )?<limit>)?",
]
OUTPUTS: Final = list(map(_compiled, _OUTPUTS))
"""The requested output is too large; `limit` is the most that is accepted, `beyond` one more."""

INPUT: Final = re.compile(
    # Most providers, in words of their own
    r"context[ _](?:length|window|size|limit)s?\b.{0,60}?"
    r"(?:exceed|overflow|too (?:long|large|small)|\bfull\b|not enough)"
    r"|\bcontext overflow|prompt (?:is )?too long|context the overflows"
    r"|(?:exceed\w*|longer than|greater than|larger than|too (?:long|large|big|many) for"
    r"|fit in(?:to)?)\b.{0,60}?\b(?:context (?:length|window|size|limit)|n_ctx|max_seq_len)"
    r"|\bexceeds? the (?:models? )?context\b"
    r"|max(?:imum)?[ _](?:model |allowed |supported )?"
    r"(?:context (?:length|window|size|limit)|(?:prompt|input|sequence) (?:length|tokens?))\b"
    # Gemini, GitHub Copilot; Cohere: google-gemini/gemini-cli#6678, cohere-ai/sandbox-topically#4
    r"|(?:prompt|input) token count\b.{0,60}?(?:exceeds|supports (?:only )?up to|above)"
    r"|total number of tokens\b.{0,60}?cannot exceed"
    # Groq, Cerebras: OpenHands/OpenHands#1902, cline/cline#5140
    r"|reduce (?:the length of )?(?:the |your )?(?:input|prompts?|messages?|conversation)\b"
    # LM Studio: anomalyco/opencode#11141; vLLM: vllm-project/vllm#12165; Snowflake: positron#11737
    r"|n_keep\W{0,4}\d{1,9}\W{0,8}n_ctx\b|longer than the maximum model length"
    r"|max tokens of \d[\d,]{0,15} exceeded"
    # ONNX Runtime, Transformers: microsoft/onnxruntime-genai#1558, #1425, tensorchord/modelz-llm#35
    r"|input_ids size \(\d{1,9}\).{0,60}?exceeds max(?:imum)?[ _]length"
    r"|max_length \(\d{1,9}\) cannot be greater than model context_length"
    r"|length of input_ids is \d{1,9}, but max_length is set to"
    # DashScope: QwenLM/qwen-code#98; Moonshot, Volcengine: bytedance/deer-flow#583
    r"|range of input length should be|exceeded model token limit"
    r"|total tokens of image and text exceed"
    # SiliconFlow: CherryHQ/cherry-studio#1131; RKLLM: jaylfc/taOS#1738
    r"|prompt_?tokens\b.{0,40}?(?:must be less than|exceeds?|greater than)"
    r"|max_total_tokens\b.{0,20}?must be less than or equal to max_seq_len"
    r"|tokens but the models? context window is"
    # OpenAI; GitHub Models, Gemini, proxies: eslint/tsc-meetings#593, anomalyco/opencode#14064
    r"|\b(?:messages|input): array too long|request (?:entity |body |payload )?(?:size )?(?:is )?"
    r"(?:too large|exceeds the (?:limit|maximum (?:allowed )?(?:size|number of bytes)))"
)
"""The input is too long."""

VAGUE_INPUT: Final = re.compile(
    r"\b(?:prompt|input|conversation|context|history)(?: tokens?| text| length| size)?"
    r" (?:is |are )?too (?:long|large|big)\b"
    r"|\b(?:prompts?|inputs?)\b[^.;:]{0,60}?(?:exceeds?|exceeded|longer than|greater than"
    r"|larger than|above|must have less than)\b.{0,40}?(?:\d|limit|max|length)"
    r"|too many (?:input |prompt )?tokens|token limit (?:was |is |has been )?exceeded"
    r"|exceed\w* (?:the |your )?(?:models? )?(?:max(?:imum)? )?(?:number of )?(?:input )?"
    r"tokens? (?:limit|allowed)"
    r"|(?:input|number of) tokens \d+ cannot exceed|requested token count \d{1,12} exceeds"
    # Chinese gateways: baichuan-inc/Baichuan-13B#38
    r"|(?:输入|提示词?|上下文|对话|会话|prompt|tokens?)[^.;。]{0,30}?"
    r"(?:超过|超出|超限|超长|过长|太长|过大|过多)"
)
"""The input is too long, unless the text names another limit."""

OTHER_LIMIT: Final = re.compile(
    rf"\b{_SETTING}\b|\b(?:output|completion) tokens"
    r"|\bimages?\b|\bpixels?\b|\bfiles?\b|\battachments?\b|\baudio\b|\bvideo\b|\bpages\b"
    r"|\bbytes\b|\barray too long|\btools?\b|\bfunctions?\b|\bmetadata\b|\binstructions\b"
    r"|输出|生成"
)
"""Other limits."""
