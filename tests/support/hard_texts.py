"""Texts that tokenizers and templates trip over."""

from hypothesis import strategies as st

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")

FRAGMENTS = (
    *CONTROL,
    "<|im_",
    "start|>",
    "|>",
    "<|",
    "im_start",
    "system\n",
    "user",
    "assistant",
    "Question: ",
    "Answer:",
    "A: ",
    " ",
    "  ",
    " " * 37,
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\u00a0",
    "\u200b",
    "\u2028",
    "\x00",
    "\x85",
    ".",
    ":",
    "!?",
    "'s",
    "'LL",
    "word",
    "Straße",
    "ALLCAPS",
    "e\u0301",
    "\u0301",
    "\u00e9",
    "Å",
    "한국어",
    "\u1112\u1161\u11ab",
    "你好世界",
    "返金",
    "مرحبا",
    "हिन्दी",
    "🙂",
    "👩\u200d👩\u200d👧",
    "🇨🇭",
    "\ufe0f",
    "0",
    "1234567",
    "½",
    "Ⅷ",
    '{"a":[1,null]}',
    "\\n",
    '"',
    "</tool_call>",
    "x0f3a",
)

hard_texts = st.lists(
    st.sampled_from(FRAGMENTS) | st.text(max_size=5), min_size=0, max_size=12
).map("".join)

HARD = (
    "".join(FRAGMENTS),
    " ".join(FRAGMENTS),
    "\n".join(FRAGMENTS),
    "a" * 5_000,
    " " * 5_000 + "x",
    "e\u0301" * 500,
    "\u0301a",
)
