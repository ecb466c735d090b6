"""How providers phrase errors about the size of a request, as a table. [compaction.overflow-errors]

A pattern is matched against a text in lower case, without quotes, backticks and backslashes, with
single spaces. `<name>` in it is a number. Patterns have no unbounded repetition, so that a search
is linear in the text.

`source` names where the phrasing was recorded: an issue or pull request (`owner/name#number`), a
file (`owner/name path`) or a page; it is empty where none was. Rows of ANY are general wordings,
tried after all others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ANY: Final = "any provider"
_PI: Final = "earendil-works/pi packages/ai/src/utils/overflow.ts"


class Phrasing(NamedTuple):
    """One wording of a provider."""

    provider: str
    pattern: str
    source: str = ""


class Sum(NamedTuple):
    """A wording that adds input and output up, with the groups `window`, `input` and `output`.

    `names_setting` is set where the error names the setting of the output limit. The group `parts`
    has several numbers, of which the one of the completion is the output.
    """

    provider: str
    pattern: str
    source: str
    names_setting: bool = False


CODES: Final = (
    Phrasing("OpenAI, Azure, Groq", "context_length_exceeded", "assafelovic/gpt-researcher#680"),
    Phrasing("Anthropic, Zhipu", "model_context_window_exceeded", _PI),
    Phrasing("LiteLLM", "contextwindowexceedederror", "BerriAI/litellm docs/exception_mapping.md"),
    Phrasing(
        "LiteLLM",
        "context_window_exceeded(?:_error)?",
        "BerriAI/litellm docs/exception_mapping.md",
    ),
    Phrasing("llama.cpp", "exceed_context_size(?:_error)?", "ggml-org/llama.cpp#15780"),
    Phrasing(
        "GitHub Copilot",
        "model_max_prompt_tokens_exceeded",
        "microsoft/copilot-intellij-feedback#94",
    ),
    Phrasing("UCloud", "tokens_too_long", "ucloud-global.com modelverse error codes"),
    Phrasing(ANY, "context_(?:window|limit)_exceeded|max_context_length_exceeded"),
    Phrasing(ANY, "context_too_long|prompt_too_long|input_too_long|token_quantity_exceeded"),
)
"""Codes of an input that is too long, as words of any field or text."""

WEAK_CODES: Final = (
    Phrasing("Anthropic", "request_too_large", _PI),
    Phrasing("GitHub Models", "tokens_limit_reached", "eslint/tsc-meetings#593"),
)
"""Codes that say this too, unless the text is about a rate, a quota or a file."""

FIELD_CODES: Final = (
    Phrasing("Zhipu", "1261", "zeroclaw-labs/zeroclaw#4124"),
    Phrasing("MiniMax", "1039", "MiniMax-AI/MiniMax-01#15"),
)
"""Numbers that are a code of an input that is too long in a field for codes only."""

RATES: Final = (
    Phrasing(
        "OpenAI, Groq, Cerebras, Anthropic, Bedrock",
        r"\bper[ -](?:second|sec|minute|min|hour|day|week|month)\b|/ ?(?:sec|min|hour|day)\b"
        r"|\b[tr]p[md]\b|\b(?:daily|hourly|weekly|monthly)\b",
        "continuedev/continue#10218, microsoft/autogen#198, minorun365/agent-book#29",
    ),
    Phrasing(
        "all",
        r"rate[ _-]?limit|\bquota|too many requests",
        "langgenius/dify#12709, google-gemini/gemini-cli#8414",
    ),
    Phrasing("Bedrock", r"throttl|\bplease wait\b", "hyunhwan-bcm/MARRVEL_MCP#225"),
    Phrasing(
        "Azure, Gemini",
        r"try again (?:in|later)\b|retry (?:after|in)\b",
        "alex-wolf-ps/dbchatprov2#2",
    ),
    Phrasing(
        "Gemini, Vertex AI", r"resource[_ ](?:has been )?exhausted", "continuedev/continue#11424"
    ),
    Phrasing("Anthropic, Mistral", r"overloaded|capacity exceeded|concurren"),
    Phrasing("OpenRouter", r"\bcredits?\b|can only afford", "openrouter.ai error 402"),
    Phrasing(
        "Zhipu, DeepSeek, OpenAI", r"\bbilling\b|\bbalance\b|\barrears\b", "docs.z.ai api-code"
    ),
    Phrasing(
        "Anthropic",
        r"\b(?:this|your) (?:current )?(?:plan|subscription|tier)\b|extra usage is required"
        r"|\b(?:this|your|for) (?:organization|account|workspace|project|api key)\b",
        "anthropics/claude-code#27944, Wei-Shaw/sub2api#572",
    ),
    Phrasing("Cerebras", r"too many tokens processed", "anomalyco/opencode#7463"),
    Phrasing(
        "OpenRouter, gateways",
        r"\bkeys? (?:(?:token|spend|credit|usage) )?limit\b|\b(?:this|your|for the) (?:api )?key\b",
        "RooCodeInc/Roo-Code#515, MCPJam/inspector#1287",
    ),
    Phrasing("Chinese gateways", r"每(?:秒|分钟|小时|天|日|月)|速率|频率|限流|额度|余额|欠费|稍后"),
)
"""Limits on a rate, a quota, a plan or a payment."""

MEDIA_COUNTS: Final = (
    Phrasing(
        "Anthropic",
        r"too (?:many|much) (?:images|media|documents)|many-image requests|\bpdf pages\b",
        "anthropics/claude-code#23392, anthropics/claude-code#3397",
    ),
    Phrasing(ANY, r"\bmax(?:imum)? (?:number )?of (?:\d+ )?(?:images|media|files)"),
)
"""Too many images, or too large ones for so many."""

REASONING: Final = (
    Phrasing(
        "Anthropic",
        r"invalid (?:signature|data) in (?:redacted_)?thinking block|thinking\.signature: "
        r"|bound to a different (?:conversation|account|model|organi[sz]ation)"
        r"|thinking blocks in the latest assistant message cannot be modified"
        r"|block in an assistant message cannot be thinking",
        "platform.claude.com preserved-thinking, anthropics/claude-code#10199",
    ),
    Phrasing(
        "OpenAI, Azure",
        r"invalid_encrypted_content|encrypted[ _]content is not supported"
        r"|encrypted[ _]content\b.{0,400}could not be (?:verified|decrypted)"
        r"|provided without its required (?:following|reasoning) item",
        "openai/codex#8426, openai/openai-python#2558",
    ),
    Phrasing("xAI", r"(?:could not|failed to|unable to) decrypt\b.{0,60}(?:encrypted|reasoning)"),
    Phrasing(
        "Gemini, Vertex AI",
        r"(?:invalid|corrupted) thought[ _]signature|thought[ _]signature is (?:not valid|invalid)",
        "google-gemini/gemini-cli#13820",
    ),
    Phrasing(
        "Groq, Cerebras",
        r"(?:reasoning_content|reasoning_details|thinking_blocks)\b.{0,80}(?:unsupported"
        r"|not supported|not permitted|not allowed|unrecognized|unexpected)",
        "sst/opencode#1516",
    ),
    Phrasing(
        ANY,
        r"(?:unknown|unrecognized|unsupported|unexpected|extra)\b.{0,40}\b(?:reasoning_content"
        r"|reasoning_details|thinking_blocks)"
        r"|(?:reasoning|thinking)(?: content)? (?:block|item)s?\b.{0,60}"
        r"(?:not supported|unsupported|could not be verified)",
    ),
)
"""Reasoning or an encrypted item of an earlier message that a provider does not take back."""
MEDIA: Final = (
    *MEDIA_COUNTS,
    Phrasing(
        "Anthropic",
        r"could not process (?:image|pdf|document|file)|specified using the [\w/.+-]{1,40} media"
        r" type|does not match the provided media type|image\.source\.[\w.]{1,40}:",
        "anthropics/claude-code#39534, anthropics/claude-code#12064",
    ),
    Phrasing(
        "OpenAI",
        r"uploaded an unsupported image|not represent a valid image|invalid_image|image_parse_error"
        r"|invalid_base64|(?:failed to|error while) download|invalid (?:image|audio|file)[ _]",
        "vercel/ai#1544, CosmosShadow/gptpdf#6",
    ),
    Phrasing(
        "Gemini",
        r"unable to process input (?:image|video|audio|file)|provided image is not valid"
        r"|inline_?data[^:]{0,60}base64|base64 decoding failed|unsupported mime type",
        "google-gemini/gemini-cli#5064, danny-avila/LibreChat#6593",
    ),
    Phrasing(
        "Anthropic",
        r"(?<!of )\b(?:image|file|attachment|audio|video|document|pdf)s?\b(?: \w{1,20}){0,3} "
        r"(?:exceeds?|too large|too big|too long)\b|\bimage dimensions\b|\bpixels\b|\bpdf pages\b",
        "gptme/gptme#185, anthropics/claude-code#24630",
    ),
)
"""Media that a provider refuses: what they are, their size or their number."""

OTHERS: Final = (
    Phrasing(
        "OpenAI",
        r"\btools\b[^.]{0,40}array too long|\bmax(?:imum)? of \d+ tools",
        "vishalmysore/Tools4AI#16",
    ),
    Phrasing("OpenAI", r"unsupported parameter|is not supported with this model"),
    Phrasing(
        "OpenAI, Voyage",
        r"\b(?:in|per|this|your|submitted) (?:(?:a|the) )?batch\b|max_tokens_per_request",
        "assafelovic/gpt-researcher#1500",
    ),
    Phrasing(
        "Chinese gateways",
        r"(?:文件|图片|图像|附件|音频|视频)[^.。]{0,12}(?:过大|太大|超过|超出)",
    ),
)
"""Limits of tools, and other errors that name a size."""

SUMS: Final = (
    Sum(
        "OpenAI, Azure, DeepSeek, OpenRouter, vLLM",
        r"maximum context length is <window> tokens?.{0,20}?you requested (?:about )?[\d,]{1,16}"
        r" ?tokens \((?P<parts>[^()]{1,200})\)",
        "ChatGPTNextWeb/NextChat#3195, Aider-AI/aider#3721, evalstate/fast-agent#621",
    ),
    Sum(
        "Anthropic",
        r"input length and max_tokens exceed context limit: <input> \+ <output> > <window>",
        "continuedev/continue#8454",
        names_setting=True,
    ),
    Sum(
        "vLLM",
        r"is too large: <output>\. this models maximum context length is <window> tokens and"
        r" your request has <input> input tokens",
        "claude-code-best/claude-code#272",
        names_setting=True,
    ),
    Sum(
        "vLLM",
        r"maximum context length is <window> tokens\. however, your request has <input> input"
        r" tokens plus <output> max_tokens",
        "vllm-project/vllm#33425",
        names_setting=True,
    ),
    Sum(
        "vLLM",
        r"maximum context length is <window> tokens\. however, you requested <output> output"
        r" tokens and your prompt contains (?:at least )?<input> input tokens",
        "AIDotNet/OpenCowork#82",
    ),
    Sum(
        "vLLM, NVIDIA NIM",
        r"you passed <input> input tokens and requested <output> output tokens\. however, the"
        r" models context length is only <window> tokens",
        "Kilo-Org/kilocode#8698",
    ),
    Sum(
        "TGI, Together",
        r"inputs tokens \+ max_new_tokens must be <= <window>\. given: <input> inputs tokens"
        r" and <output> max_new_tokens",
        "huggingface/chat-ui#327, stanford-crfm/helm#2079",
        names_setting=True,
    ),
    Sum(
        "LiteLLM, SGLang",
        r"maximum context length of <window> tokens\. you requested a total of [\d,]{1,16}"
        r" tokens: <input> tokens from the input messages and <output> tokens for the completion",
        "PrimeIntellect-ai/prime-agent#2086",
    ),
)

_SETTING = r"max_?(?:completion_?|output_?|new_?)?tokens"
OUTPUTS: Final = (
    Phrasing(
        "OpenAI",
        rf"{_SETTING} is too large: <requested>\. this model supports at most <limit>",
        "ChatGPTNextWeb/NextChat#3195",
    ),
    Phrasing(
        "OpenAI, Volcengine",
        rf"{_SETTING}(?: specified in the request (?:is|are) not valid)?: integer above maximum"
        r" value[.,] expected a value <= <limit>(?:, but got <requested>)?",
        "yiliqi78/TOKENICODE#3, Gitlawb/openclaude#331",
    ),
    Phrasing(
        "Anthropic",
        r"max_tokens: <requested> > <limit>, which is the maximum allowed number of output",
        "anthropics/claude-code#24451",
    ),
    Phrasing(
        "Bedrock",
        r"maximum tokens you requested exceeds? the model limit of <limit>",
        "vercel/ai#2772",
    ),
    Phrasing(
        "Bedrock",
        r"malformed input request: (?:#/[\w/]{1,80}: )?<requested> is not less or equal to"
        r" (?P<limit>\d{3,9})",
        "langchain-ai/langchain#9697",
    ),
    Phrasing(
        "Vertex AI",
        r"maxoutputtokens value of <requested> but the supported range is from 1 \(inclusive\)"
        r" to <beyond> \(exclusive\)",
        "BerriAI/litellm#10548",
    ),
    Phrasing(
        "Groq",
        rf"{_SETTING}(?: for \S{{1,100}})? must be less than or equal to <limit>",
        "khoj-ai/khoj#1236, skapadia3214/groq-moa#8",
    ),
    Phrasing(
        "DeepSeek, DashScope",
        r"range of max_tokens (?:is|should be) \[\d+, ?<limit>\]",
        "deepseek-ai/DeepSeek-V3#69, open-webui/open-webui#10507",
    ),
    Phrasing(
        "Ollama",
        r"max_tokens \(<requested>\) exceeds (?:the )?models maximum output tokens \(<limit>\)",
        "DaviRain-Su/hyper-grok-build#44",
    ),
    Phrasing(
        "Databricks",
        r"max_tokens \(<requested>\) cannot exceed <limit>",
        "databricks/databricks-sdk-go#1183",
    ),
    Phrasing("TGI", r"(?<!\+ )max_new_tokens must be <= <limit>", "huggingface/transformers#28523"),
    Phrasing("Fireworks", r"max_tokens > <limit> must have stream", "nullclaw/nullclaw#231"),
    Phrasing("Scaleway", rf"{_SETTING} is limited for this model", "scaleway/docs-content#4858"),
    Phrasing(
        ANY,
        rf"(?<!\+ )(?<!and )(?<!plus )(?:\b{_SETTING}|max(?:imum)? output tokens)\b[^.;]{{0,60}}?"
        r"(?:too (?:large|big|high)|exceed|\bmust be (?:less|smaller|at most|below|between|<|≤)"
        r"|\bshould be (?:less|smaller|at most|below|between|<)|\bcannot be (?:greater|larger)"
        r"|\bat most\b|\b(?:greater|larger|higher) than (?:the )?(?:max|limit|model))"
        r"(?:[^.;\d]{0,40}(?:\d and )?<limit>)?",
    ),
)
"""The requested output is too large; `limit` is the most that is accepted, `beyond` one more."""

INPUTS: Final = (
    Phrasing(
        "OpenAI, Azure, DeepSeek, NVIDIA NIM, vLLM",
        r"maximum (?:model )?context (?:length|window|size|limit)\b",
        "chathub-dev/chathub#126, Alishahryar1/free-claude-code#391",
    ),
    Phrasing("OpenAI Responses", r"input exceeds the (?:models )?context window", _PI),
    Phrasing("OpenAI", r"input tokens exceed the configured limit", "cline/cline#5474"),
    Phrasing("Anthropic", r"prompt is too long", "daisuke-awaji/moca#254"),
    Phrasing(
        "Bedrock", r"input is too long for requested model", "strands-agents/harness-sdk#1529"
    ),
    Phrasing("Bedrock", r"input tokens exceeded|too many input tokens"),
    Phrasing(
        "Gemini, Vertex AI, GitHub Copilot",
        r"(?:prompt|input) token count\b.{0,60}?(?:exceeds|supports (?:only )?up to|above)",
        "google-gemini/gemini-cli#6678, googleapis/python-aiplatform#6336",
    ),
    Phrasing("Mistral", r"too large for model with \d+ maximum context length", _PI),
    Phrasing(
        "Cohere",
        r"total number of tokens\b.{0,60}?cannot exceed|too many tokens: size limit exceeded",
        "cohere-ai/sandbox-topically#4",
    ),
    Phrasing(
        "Groq, Cerebras",
        r"reduce (?:the length of )?(?:the |your )?(?:input|prompts?|messages?|conversation)\b"
        r"|\bcurrent length is \d+ while limit is",
        "OpenHands/OpenHands#1902, cline/cline#5140",
    ),
    Phrasing("Together", r"is longer than the models context length", _PI),
    Phrasing("Fireworks", r"prompt is too long: \d+, model maximum context", "ogx-ai/ogx#697"),
    Phrasing("xAI", r"maximum prompt length is \d+", "cline/cline#3120"),
    Phrasing("OpenRouter", r"exceeds the maximum allowed input length", _PI),
    Phrasing(
        "LiteLLM", r"requested token count exceeds the models", "PrimeIntellect-ai/prime-agent#2086"
    ),
    Phrasing("llama.cpp", r"exceeds the available context size", "openclaw/openclaw#64196"),
    Phrasing("llama-cpp-python", r"exceed context window of \d+", "rllm-team/rllm#55"),
    Phrasing("Ollama", r"prompt too long; exceeded (?:max )?context length", _PI),
    Phrasing("LM Studio", r"greater than the context length|context the overflows", _PI),
    Phrasing(
        "LM Studio",
        r"n_keep\W{0,4}\d{1,9}\W{0,8}n_ctx\b",
        "anomalyco/opencode#11141, tinyhumansai/openhuman#3550",
    ),
    Phrasing(
        "vLLM",
        r"too long to fit in(?:to)? the model|longer than the maximum model length",
        "vllm-project/vllm#12165, EvolvingLMMs-Lab/lmms-eval#711",
    ),
    Phrasing("Snowflake", r"max tokens of \d[\d,]{0,15} exceeded", "posit-dev/positron#11737"),
    Phrasing(
        "ONNX Runtime",
        r"input_ids size \(\d{1,9}\).{0,60}?exceeds max(?:imum)?[ _]length"
        r"|sequence_?length \(\d{1,9}\) (?:is )?(?:>=|exceeds)"
        r"|max_length \(\d{1,9}\) cannot be greater than model context_length",
        "microsoft/onnxruntime-genai#1558, microsoft/onnxruntime-genai#1425",
    ),
    Phrasing(
        "Transformers",
        r"length of input_ids is \d{1,9}, but max_length is set to",
        "tensorchord/modelz-llm#35",
    ),
    Phrasing("Zhipu", r"prompt exceeds max length|prompt 超长", "zeroclaw-labs/zeroclaw#4124"),
    Phrasing("Moonshot", r"exceeded model token limit|input token length (?:is )?too long", _PI),
    Phrasing("DashScope", r"range of input length should be", "QwenLM/qwen-code#98"),
    Phrasing(
        "TGI, Together",
        r"inputs tokens \+ max_new_tokens must be|inputs must have less than \d+ tokens",
        "meta-llama/llama#1103, barun-saha/slide-deck-ai#44",
    ),
    Phrasing(
        "NVIDIA NIM, SGLang",
        r"input length \(?\d+(?: tokens\))? exceeds (?:the )?maximum allowed",
        "NVIDIA/nim-anywhere#58, sgl-project/sglang#4048",
    ),
    Phrasing("MiniMax", r"context window exceeds limit", "MiniMax-AI/MiniMax-M2#119"),
    Phrasing("Volcengine", r"total tokens of image and text exceed", "bytedance/deer-flow#583"),
    Phrasing(
        "SiliconFlow",
        r"prompt_?tokens\b.{0,40}?(?:must be less than|exceeds?|greater than)"
        r"|max_total_tokens\b.{0,20}?must be less than or equal to max_seq_len",
        "CherryHQ/cherry-studio#1131, icysaintdx/InvestMind-Pro MAX_TOKENS_FIX.md",
    ),
    Phrasing("TabbyAPI", r"is greater than max_seq_len", "SillyTavern/SillyTavern#3543"),
    Phrasing("RKLLM", r"tokens but the models? context window is", "jaylfc/taOS#1738"),
    Phrasing("OpenAI", r"\b(?:messages|input): array too long"),
    Phrasing(
        "GitHub Models, Gemini, proxies",
        r"request (?:entity |body |payload )?(?:size )?(?:is )?"
        r"(?:too large|exceeds the (?:limit|maximum (?:allowed )?(?:size|number of bytes)))",
        "eslint/tsc-meetings#593, anomalyco/opencode#14064",
    ),
    Phrasing(
        ANY,
        r"context[ _](?:length|window|size|limit)s?\b.{0,60}?"
        r"(?:exceed|overflow|too (?:long|large|small)|\bfull\b|not enough)"
        r"|\bcontext overflow"
        r"|(?:exceed\w*|longer than|greater than|larger than|too (?:long|large|big|many) for"
        r"|fit in(?:to)?)\b.{0,60}?\b(?:context (?:length|window|size|limit)|n_ctx|max_seq_len)"
        r"|\bexceeds? the (?:models? )?context\b"
        r"|max(?:imum)?[ _](?:model |allowed |supported )?"
        r"(?:context (?:length|window|size|limit)|(?:prompt|input|sequence) (?:length|tokens?))\b",
    ),
)
"""The input is too long."""

VAGUE_INPUTS: Final = (
    Phrasing(
        ANY,
        r"\b(?:prompt|input|conversation|context|history)(?: tokens?| text| length| size)?"
        r" (?:is |are )?too (?:long|large|big)\b"
        r"|\b(?:prompts?|inputs?)\b[^.;:]{0,60}?(?:exceeds?|exceeded|longer than|greater than"
        r"|larger than|above|must have less than)\b.{0,40}?(?:\d|limit|max|length)"
        r"|too many (?:input |prompt )?tokens|token limit (?:was |is |has been )?exceeded"
        r"|exceed\w* (?:the |your )?(?:models? )?(?:max(?:imum)? )?(?:number of )?(?:input )?"
        r"tokens? (?:limit|allowed)"
        r"|(?:input|number of) tokens \d+ cannot exceed"
        r"|requested token count \d{1,12} exceeds",
    ),
    Phrasing(
        "Chinese gateways",
        r"(?:输入|提示词?|上下文|对话|会话|prompt|tokens?)[^.;。]{0,30}?"
        r"(?:超过|超出|超限|超长|过长|太长|过大|过多)",
        "baichuan-inc/Baichuan-13B#38",
    ),
)
"""The input is too long, unless the text names another limit."""

OTHER_LIMITS: Final = (
    Phrasing(
        ANY,
        rf"\b{_SETTING}\b|\b(?:output|completion) tokens"
        r"|\bimages?\b|\bpixels?\b|\bfiles?\b|\battachments?\b|\baudio\b|\bvideo\b|\bpages\b"
        r"|\bbytes\b|\barray too long|\btools?\b|\bfunctions?\b|\bmetadata\b|\binstructions\b"
        r"|输出|生成",
    ),
)
