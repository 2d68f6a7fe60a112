import pytest

from epp.simulator.tokens import Reply, decode, encode, encode_chat, spell


def test_a_text_that_grows_keeps_the_tokens_it_had():
    short = encode("the quick brown fox jumps")
    long = encode("the quick brown fox jumps over the dog")

    assert list(long[: len(short) - 1]) == list(short[:-1])


def test_four_bytes_make_a_token_and_a_rest_makes_one_more():
    assert [len(encode(text)) for text in ("", "a", "abcd", "abcde", "äöü")] == [0, 1, 1, 2, 2]


def test_equal_prompts_get_equal_replies_and_other_prompts_and_seeds_others():
    replies = [
        Reply(encode(prompt), seed).tokens(20)
        for prompt, seed in (("hello", 0), ("hello", 0), ("help!", 0), ("hello", 1))
    ]

    assert replies[0] == replies[1]
    assert replies[0] != replies[2]
    assert replies[0] != replies[3]


def test_a_shorter_reply_is_the_beginning_of_a_longer_one():
    reply = Reply(encode("hello"))

    assert reply.tokens(50)[:7] == reply.tokens(7)


def test_a_reply_sent_back_in_a_chat_is_the_tokens_that_were_generated():
    asked = [("system", "be brief"), ("user", "hello")]
    prompt = encode_chat(asked)
    reply = Reply(prompt).tokens(9)
    said = b"".join(map(spell, reply)).decode()

    next_prompt = encode_chat([*asked, ("assistant", said), ("user", "go on")])

    assert list(next_prompt[: len(prompt) + 9]) == [*prompt, *reply]


@pytest.mark.parametrize("text", ["", "a", "hello world", "äöü €", "漢字かな交じり文"])
def test_tokens_become_the_text_they_were_made_of(text: str):
    assert decode(encode(text)) == text


def test_tokens_that_are_no_text_become_replacements():
    assert decode([0xFFFFFFFF]) == "\N{REPLACEMENT CHARACTER}" * 4


def test_a_generated_token_is_spelled_as_its_text():
    tokens = Reply(encode("hello")).tokens(20)

    assert decode(tokens) == b"".join(map(spell, tokens)).decode()
