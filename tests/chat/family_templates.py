"""Short templates with the traits of the families' own ones."""

from __future__ import annotations

from typing import Final

CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

HERMES: Final = """
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\nAnswer with <tool_call>{"name": <name>, "arguments": <object>}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL: Final = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- raise_exception('the system message comes first') }}
    {%- elif message.role == 'user' %}
        {%- if tools and loop.last %}
            {{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + (system + '\\n\\n' if system is defined and loop.first else '') + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + message.tool_call_id[-9:] + message.content + '[/TOOL_RESULTS]' }}
    {%- elif message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments }}
        {%- endfor %}
        {{- eos_token }}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

GEMMA: Final = """
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{ raise_exception('System role not supported') }}{%- endif %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles alternate') }}{%- endif %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
    {{- message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{%- endif %}
"""
