"""A chat's document: written by tails, read whole."""

from serve_app.contexts.document import Line, Settings, appended, opening, read

TOOL = {"type": "function", "function": {"name": "f", "description": "two\nlines"}}
SYSTEM = {"role": "system", "content": "two\nlines — and more"}
ASKED = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
ANSWER = {"role": "assistant", "content": "ho"}


def test_tails_appended_to_an_opening_are_read_as_one_chat() -> None:
    settings = Settings(tools=[TOOL], chat_template_kwargs={"a": 1})
    tail = appended([Line(ASKED), Line(ANSWER, is_answer=True)])
    document = read(opening(settings, [SYSTEM]) + tail)
    assert document.settings == settings
    assert document.messages == [SYSTEM, ASKED, ANSWER]
    assert document.ends_in_answer


def test_an_assistant_message_of_the_client_is_no_answer() -> None:
    assert not read(opening(Settings(), [ASKED, ANSWER])).ends_in_answer
