/* The built-in chat templates, for models that have none. Each gives the text of the published template that
 * tests/golden/make/golden_builtin.py names, and marks what the model is to write: the answer and its end token. */
#include "engine/text/template.h"

/* Takes a system text at the beginning apart: `system` and the messages behind it, `turns`. */
#define TAKE_SYSTEM                                                                                                   \
    "{%- set system = messages[0].content if messages[0].role == 'system' %}\n"                                       \
    "{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}\n"
#define MUST_ALTERNATE                                                                                                \
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}\n"                                                        \
    "{{- raise_exception('the messages must be by the user and the assistant in turn, the first by the user') }}\n"   \
    "{%- endif %}\n"
#define REFUSES_SYSTEM "{{- raise_exception('the chat template has no place for a system message') }}\n"
#define REFUSES_OTHER_ROLES                                                                                           \
    "{{- raise_exception('the chat template has no place for messages by the role ' ~ m.role) }}\n"

static const char chatml[] =
    "{%- for m in messages %}\n"
    "{{- '<|im_start|>' + m.role + '\\n' }}\n"
    "{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}\n"
    "{%- else %}{{ m.content + '<|im_end|>' }}{% endif %}\n"
    "{{- '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* The blanks around a system text stay, because it is stripped together with the user's. */
static const char llama2[] =
    "{%- set has_system = messages[0].role == 'system' %}\n"
    "{%- for m in (messages[1:] if has_system else messages) %}\n" MUST_ALTERNATE
    "{%- set first = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' if loop.first and has_system else '' %}\n"
    "{%- if m.role == 'user' %}{{ bos_token + '[INST] ' + (first + m.content).strip() + ' [/INST]' }}\n"
    "{%- elif m.role == 'assistant' %}{% generation %}\n"
    "{{- ' ' + m.content.strip() + ' ' + eos_token }}{% endgeneration %}\n"
    "{%- endif %}\n"
    "{%- endfor %}";

static const char llama3[] =
    "{%- for m in messages %}\n"
    "{{- (bos_token if loop.first else '') + '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}\n"
    "{%- if m.role == 'assistant' %}{% generation %}{{ m.content | trim + '<|eot_id|>' }}{% endgeneration %}\n"
    "{%- else %}{{ m.content | trim + '<|eot_id|>' }}{% endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

static const char mistral_v1[] =
    TAKE_SYSTEM
    "{{- bos_token }}\n"
    "{%- for m in turns %}\n" MUST_ALTERNATE
    "{%- if m.role == 'user' %}\n"
    "{{- ' [INST] ' + (system + '\\n\\n' if loop.first and system is defined else '') + m.content + ' [/INST]' }}\n"
    "{%- elif m.role == 'assistant' %}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}\n"
    "{%- else %}" REFUSES_OTHER_ROLES "{%- endif %}\n"
    "{%- endfor %}";

/* The system text stands before a user message that ends the conversation; elsewhere these templates drop it. */
#define MISTRAL_V3                                                                                                    \
    TAKE_SYSTEM                                                                                                       \
    "{%- macro check_id(id) %}\n"                                                                                     \
    "{%- if id is not defined or id | length != 9 %}\n"                                                               \
    "{{- raise_exception('the id of a tool call must have 9 characters') }}\n"                                        \
    "{%- endif %}\n"                                                                                                  \
    "{%- endmacro %}\n"                                                                                               \
    "{%- set users = turns | selectattr('role', 'equalto', 'user') | list %}\n"                                       \
    "{%- for m in turns if m.role not in ('tool', 'tool_results') and (m.tool_calls is not defined or "               \
    "m.tool_calls is none) %}\n" MUST_ALTERNATE                                                                       \
    "{%- endfor %}\n"                                                                                                 \
    "{{- bos_token }}\n"                                                                                              \
    "{%- for m in turns %}\n"                                                                                         \
    "{%- if m.role == 'user' %}\n"                                                                                    \
    "{%- if tools is not none and m == users[-1] %}\n"                                                                \
    "{{- '[AVAILABLE_TOOLS]' + blank + '[' }}\n"                                                                      \
    "{%- for tool in tools %}\n"                                                                                      \
    "{{- '{\"type\": \"function\", \"function\": {' }}\n"                                                             \
    "{%- for key, value in tool.function.items() if key != 'return' %}\n"                                             \
    "{{- '\"' + key + '\": ' + ('\"' + value + '\"' if value is string else value | tojson) }}\n"                     \
    "{{- '' if loop.last else ', ' }}\n"                                                                              \
    "{%- endfor %}\n"                                                                                                 \
    "{{- '}}' + (']' if loop.last else ', ') }}\n"                                                                    \
    "{%- endfor %}\n"                                                                                                 \
    "{{- '[/AVAILABLE_TOOLS]' }}\n"                                                                                   \
    "{%- endif %}\n"                                                                                                  \
    "{{- '[INST]' + blank + (system + '\\n\\n' if loop.last and system is defined else '') + m.content + "            \
    "'[/INST]' }}\n"                                                                                                  \
    "{%- elif m.tool_calls is defined and m.tool_calls is not none %}{% generation %}\n"                              \
    "{{- '[TOOL_CALLS]' + blank + '[' }}\n"                                                                           \
    "{%- for call in m.tool_calls %}{{ check_id(call.id) }}\n"                                                        \
    "{{- (call.function | tojson)[:-1] + ', \"id\": \"' + call.id + '\"}' }}\n"                                       \
    "{{- ']' + eos_token if loop.last else ', ' }}\n"                                                                 \
    "{%- endfor %}{% endgeneration %}\n"                                                                              \
    "{%- elif m.role == 'assistant' %}{% generation %}\n"                                                             \
    "{{- (' ' + m.content | trim if blank else m.content) + eos_token }}{% endgeneration %}\n"                        \
    "{%- elif m.role in ('tool', 'tool_results') %}{{ check_id(m.tool_call_id) }}\n"                                  \
    "{%- set has_inner = m.content is defined and m.content.content is defined %}\n"                                  \
    "{{- '[TOOL_RESULTS]' + blank + '{\"content\": ' }}\n"                                                            \
    "{{- (m.content.content if has_inner else m.content) | string }}\n"                                               \
    "{{- ', \"call_id\": \"' + m.tool_call_id + '\"}[/TOOL_RESULTS]' }}\n"                                            \
    "{%- else %}" REFUSES_OTHER_ROLES "{%- endif %}\n"                                                                \
    "{%- endfor %}"

static const char mistral_v3[] = "{%- set blank = ' ' %}\n" MISTRAL_V3;
static const char mistral_v3_tekken[] = "{%- set blank = '' %}\n" MISTRAL_V3;

static const char mistral_v7[] =
    "{{- bos_token }}\n"
    "{%- for m in messages %}\n"
    "{%- if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}\n"
    "{%- elif m.role == 'system' %}{{ '[SYSTEM_PROMPT] ' + m.content + '[/SYSTEM_PROMPT]' }}\n"
    "{%- elif m.role == 'assistant' %}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}\n"
    "{%- else %}" REFUSES_OTHER_ROLES "{%- endif %}\n"
    "{%- endfor %}";

/* The published template writes a system text of its own where a conversation has none; this one does not. */
static const char mistral_v7_tekken[] =
    "{{- bos_token }}\n"
    "{%- for m in messages %}\n"
    "{%- set text = m.content if m.content is string else m.content[0].text %}\n"
    "{%- if m.role == 'user' and m.content is not string %}{{ '[INST]' }}\n"
    "{%- for part in m.content %}\n"
    "{%- if part.type != 'text' %}{{ raise_exception('a part of a message is not a text') }}{% endif %}\n"
    "{{- part.text }}\n"
    "{%- endfor %}{{ '[/INST]' }}\n"
    "{%- elif m.role == 'user' %}{{ '[INST]' + text + '[/INST]' }}\n"
    "{%- elif m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + text + '[/SYSTEM_PROMPT]' }}\n"
    "{%- elif m.role == 'assistant' %}{% generation %}{{ text + eos_token }}{% endgeneration %}\n"
    "{%- else %}" REFUSES_OTHER_ROLES "{%- endif %}\n"
    "{%- endfor %}";

/* The words of Qwen's format for tools. */
#define QWEN_TOOLS                                                                                                    \
    "{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with " \
    "function signatures within <tools></tools> XML tags:\\n<tools>' }}\n"                                            \
    "{%- for tool in tools %}{{ '\\n' ~ tool | tojson }}{% endfor %}\n"                                               \
    "{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within "     \
    "<tool_call></tool_call> XML tags:\\n<tool_call>\\n{\"name\": <function-name>, \"arguments\": "                   \
    "<args-json-object>}\\n</tool_call><|im_end|>\\n' }}\n"
/* Consecutive answers of tools share one message by the user. */
#define QWEN_TOOL_ANSWER                                                                                              \
    "{%- elif m.role == 'tool' %}\n"                                                                                  \
    "{{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' }}\n"                                       \
    "{{- '\\n<tool_response>\\n' }}{{ m.content }}{{ '\\n</tool_response>' }}\n"                                      \
    "{{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}\n"                                           \
    "{%- endif %}\n"                                                                                                  \
    "{%- endfor %}\n"

static const char qwen25[] =
    "{%- set has_system = messages[0].role == 'system' %}\n"
    "{%- set default = 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' %}\n"
    "{{- '<|im_start|>system\\n' + (messages[0].content if has_system else default) }}\n"
    "{%- if tools %}{{ '\\n\\n' }}" QWEN_TOOLS
    "{%- else %}{{ '<|im_end|>\\n' }}{% endif %}\n"
    "{%- for m in messages %}\n"
    "{%- if m.role == 'user' or m.role == 'system' and not loop.first %}\n"
    "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\n"
    "{%- elif m.role == 'assistant' and not m.tool_calls %}\n"
    "{{- '<|im_start|>assistant\\n' }}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}\n"
    "{%- elif m.role == 'assistant' %}\n"
    "{{- '<|im_start|>assistant\\n' }}{% generation %}\n"
    "{{- m.content + '\\n' if m.content }}\n"
    "{%- for call in m.tool_calls %}\n"
    "{%- set call = call.function if call.function is defined else call %}\n"
    "{{- '<tool_call>\\n{\"name\": \"' }}{{ call.name }}{{ '\", \"arguments\": ' }}\n"
    "{{- call.arguments | tojson }}{{ '}\\n</tool_call>' + ('' if loop.last else '\\n') }}\n"
    "{%- endfor %}{{ '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}\n"
    QWEN_TOOL_ANSWER
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* A reasoning is written behind the last question alone; the last answer has one even if it is empty, which the prompt
 * of enable_thinking=false ends with. */
static const char qwen3[] =
    "{%- set has_system = messages[0].role == 'system' %}\n"
    "{%- if tools %}{{ '<|im_start|>system\\n' + (messages[0].content + '\\n\\n' if has_system else '') }}\n"
    QWEN_TOOLS
    "{%- elif has_system %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}\n"
    "{%- set last = namespace(question=messages | length - 1) %}\n"
    "{%- for m in messages %}\n"
    "{%- if m.role == 'user' and not (m.content.startswith('<tool_response>') and "
    "m.content.endswith('</tool_response>')) %}{% set last.question = loop.index0 %}{% endif %}\n"
    "{%- endfor %}\n"
    "{%- for m in messages %}\n"
    "{%- if m.role == 'user' or m.role == 'system' and not loop.first %}\n"
    "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\n"
    "{%- elif m.role == 'assistant' %}\n"
    "{%- set is_inline = m.reasoning_content is not defined and '</think>' in m.content %}\n"
    "{%- set parts = m.content.split('</think>') if is_inline %}\n"
    "{%- set content = parts[-1].lstrip('\\n') if is_inline else m.content %}\n"
    "{%- set reasoning = parts[0].rstrip('\\n').split('<think>')[-1] if is_inline else m.reasoning_content or '' %}\n"
    "{%- set thinks = loop.index0 > last.question and (loop.last or reasoning) %}\n"
    "{%- set think = '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' if thinks else '' %}\n"
    "{%- set is_prompt = enable_thinking is defined and enable_thinking is false and not reasoning %}\n"
    "{{- '<|im_start|>assistant\\n' + (think if is_prompt else '') }}{% generation %}\n"
    "{{- ('' if is_prompt else think) + (content.lstrip('\\n') if thinks else content) }}\n"
    "{%- for call in m.tool_calls %}\n"
    "{{- '\\n' if content or not loop.first }}\n"
    "{%- set call = call.function if call.function else call %}\n"
    "{{- '<tool_call>\\n{\"name\": \"' }}{{ call.name }}{{ '\", \"arguments\": ' }}\n"
    "{{- call.arguments if call.arguments is string else call.arguments | tojson }}{{ '}\\n</tool_call>' }}\n"
    "{%- endfor %}{{ '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}\n"
    QWEN_TOOL_ANSWER
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}\n"
    "{{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and enable_thinking is false }}\n"
    "{%- endif %}";

static const char gemma[] =
    "{{- bos_token }}\n"
    "{%- if messages[0].role == 'system' %}" REFUSES_SYSTEM "{%- endif %}\n"
    "{%- for m in messages %}\n" MUST_ALTERNATE
    "{%- if m.role == 'assistant' %}\n"
    "{{- '<start_of_turn>model\\n' }}{% generation %}\n"
    "{{- m.content | trim + '<end_of_turn>' }}{% endgeneration %}{{ '\\n' }}\n"
    "{%- else %}{{ '<start_of_turn>' + m.role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";

static const char phi3[] =
    "{%- for m in messages if m.role in ('system', 'user', 'assistant') %}\n"
    "{{- '<|' + m.role + '|>\\n' }}\n"
    "{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|end|>' }}{% endgeneration %}\n"
    "{%- else %}{{ m.content + '<|end|>' }}{% endif %}{{ '\\n' }}\n"
    "{%- endfor %}\n"
    "{{- '<|assistant|>\\n' if add_generation_prompt else eos_token }}";

static const char alpaca[] =
    "{{- bos_token }}\n"
    "{%- for m in messages %}\n"
    "{%- if m.role == 'system' and loop.first %}{{ m.content }}\n"
    "{%- elif m.role == 'user' %}{{ '### Instruction:\\n' + m.content }}\n"
    "{%- elif m.role == 'assistant' %}{{ '### Response:\\n' }}{% generation %}\n"
    "{{- m.content + eos_token }}{% endgeneration %}\n"
    "{%- endif %}\n"
    "{{- '' if loop.last else '\\n\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '\\n\\n### Response:\\n' }}{% endif %}";

static const char zephyr[] =
    "{%- for m in messages if m.role in ('system', 'user', 'assistant') %}\n"
    "{{- '<|' + m.role + '|>\\n' }}\n"
    "{%- if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}\n"
    "{%- else %}{{ m.content + eos_token }}{% endif %}{{ '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt and messages %}{{ '<|assistant|>\\n' }}{% endif %}";

const struct ox_template_builtin ox_template_builtins[] = {
    {"chatml", chatml},         {"llama2", llama2},
    {"llama3", llama3},         {"mistral-v1", mistral_v1},
    {"mistral-v3", mistral_v3}, {"mistral-v3-tekken", mistral_v3_tekken},
    {"mistral-v7", mistral_v7}, {"mistral-v7-tekken", mistral_v7_tekken},
    {"qwen2.5", qwen25},        {"qwen3", qwen3},
    {"gemma", gemma},           {"phi3", phi3},
    {"alpaca", alpaca},         {"zephyr", zephyr},
    {NULL, NULL},
};
