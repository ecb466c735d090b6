"""Summaries without a model: properties of the text, and of what a later round makes of it.

[summary.extractive, summary.statements, summary.unlisted]
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.summaries.prompt import SummaryResult
from app.compaction.summaries.summary_text import MORE, NOTHING, TITLE, Closing
from app.compaction.summaries.writing import digest_of, fitted, without_replaced
from app.formats.message import Message, Role, Text, ToolCall

PLENTY = 6000


def count(text: str) -> int:
    """Return a token for each four characters, and for each wide one."""
    wide = sum(character > "\u2e80" for character in text)
    return (len(text) - wide + 3) // 4 + wide


def user(text: str) -> Message:
    """Return a user message."""
    return Message(Role.USER, (Text(text),))


def assistant(text: str, *calls: ToolCall) -> Message:
    """Return an assistant message."""
    return Message(Role.ASSISTANT, (Text(text), *calls))


def call(call_id: str, name: str, **arguments: object) -> ToolCall:
    """Return a tool call."""
    return ToolCall(call_id, name, json.dumps(arguments))


def result(text: str, call_id: str, *, failed: bool = False) -> Message:
    """Return a tool message."""
    return Message(Role.TOOL, (Text(text),), tool_call_id=call_id, is_error=failed)


def run(call_id: str, command: str, output: str, *, failed: bool = False) -> list[Message]:
    """Return a shell command with its output."""
    asked = assistant("", call(call_id, "bash", command=command))
    return [asked, result(output, call_id, failed=failed)]


def told(text: str) -> list[Message]:
    """Return a statement of a user of which the assistant takes note."""
    return [user(text), assistant("Noted.")]


def summarised(
    messages: list[Message], *earlier: str, tokens: int = PLENTY, closing: Closing | None = None
) -> SummaryResult:
    """Return the summary of messages after earlier ones."""
    return fitted(digest_of(messages, earlier), tokens, count, closing or Closing())


def by_heading(text: str) -> dict[str, list[str]]:
    """Return the items of a summary by heading, read apart from the service's own reader."""
    found = re.findall(r"^## (.*)\n((?:(?:- |  ).*\n?)*)", text, re.MULTILINE)
    split = [(name, re.split(r"(?:^|\n)- ", body.strip("\n"))[1:]) for name, body in found]
    return {name: [item.replace("\n  ", "\n") for item in items] for name, items in split}


REQUEST = "Fix the login bug in src/auth/login.py.\nMust keep Python 3.9.\n\n```\ntrace\n```"
WORK = [
    user(REQUEST),
    assistant("Looking.", call("c1", "read_file", path="src/auth/session.py")),
    result("def f(): ...", "c1"),
    *run("c2", "pytest -x", "ValueError: bad salt\n1 failed in 2s"),
    assistant("The salt is wrong. Shall I use bcrypt or argon2?"),
    user("bcrypt"),
    assistant("", call("c3", "TodoWrite", todos=[{"content": "deploy", "status": "pending"}])),
    result("ok", "c3"),
    assistant("It was cut. Let me edit.", call("c4", "edit_file", path="src/auth/login.py")),
    result("done", "c4"),
    assistant("The hash is bcrypt now. Next I run the tests."),
    *told("From now on, answer in German."),
    *told("CONSTRAINT: The budget cap is $500 in total."),
]


def test_a_summary_holds_what_the_work_needs() -> None:
    """Requests whole, an answer with its question, the state from calls, and where it stood."""
    assert by_heading(summarised(WORK).text) == {
        "Stated by the user": [
            "From now on, answer in German.",
            "CONSTRAINT: The budget cap is $500 in total.",
        ],
        "Requests": [f"#1 {REQUEST}", "#7 bcrypt\n(asked: Shall I use bcrypt or argon2?)"],
        "Todo list": ["[ ] deploy"],
        "Failed last": ["pytest -x → ValueError: bad salt"],
        "Files edited": ["src/auth/login.py"],
        "Files read": ["src/auth/session.py"],
        "Steps": ["#10 It was cut."],
        "Where it stood": [
            "#6 The salt is wrong.",
            "#12 The hash is bcrypt now. Next I run the tests.",
        ],
    }


@pytest.mark.parametrize("passing", ["cd /w && pytest -q | tail -3", "cat >a <<'E'\nx\nE\npytest"])
def test_a_later_success_of_the_same_runner_ends_a_failure(passing: str) -> None:
    """Flags, paths and pipes make no other command. [summary.state-from-calls]"""
    found = by_heading(summarised([*WORK, *run("c9", passing, "3 passed in 1s")]).text)
    assert "Failed last" not in found
    assert [line.partition(" → ")[2] for line in found["Commands"]] == ["3 passed in 1s"]


STARTED = "Command running in background with ID: bcb7. Output is being written to: /tmp/bcb7"
NOTICE = (
    "<task-notification>\n<task-id>bcb7</task-id>\n<status>{0}</status>\n<summary>{1}</summary>"
)
ASKED = assistant("", call("o", "TaskOutput", task_id="bcb7"))


@pytest.mark.parametrize(
    ("ended", "heading", "line"),
    [
        ([], "Commands", "started, id bcb7"),
        ([user(NOTICE.format("completed", "Done (exit code 0)"))], "Commands", "ok"),
        ([user(NOTICE.format("failed", "Lost"))], "Failed last", "Lost"),
        ([ASKED, result("<exit_code>3</", "o")], "Failed last", "exit code 3"),
    ],
)
def test_what_is_said_of_a_background_task_is_its_outcome(
    ended: list[Message], heading: str, line: str
) -> None:
    """Also in a later round than its call, by the id that its result names."""
    begun = summarised([user("Go."), *run("1", "make all", STARTED)]).text
    assert by_heading(summarised(ended, begun).text)[heading] == [f"make all → {line}"]


def test_a_write_by_any_tool_ends_a_failed_edit() -> None:
    """A failed look is none, nor is a call whose name is no name."""
    messages = [user("Go.")]
    for name, command in (("Edit", "edit"), ("editor", "view"), ('Edit"><x', "edit")):
        asked = assistant("", call("c", name, command=command, path="/w/a.py"))
        messages += [asked, result("Not found", "c", failed=True)]
    assert by_heading(summarised(messages).text)["Failed last"] == ["Edit /w/a.py → Not found"]
    messages += [assistant("", call("c", "Write", path="/w/a.py")), result("Written.", "c")]
    ended = summarised(messages).text
    assert by_heading(ended).keys() == {"Requests", "Files edited"}
    assert "a.py" not in summarised(run("r", "rm ./a.py", ""), ended).text


def called(name: str, gave: str, *, failed: bool = False, **arguments: object) -> list[Message]:
    """Return a call with its result."""
    return [assistant("", call("c", name, **arguments)), result(gave, "c", failed=failed)]


WRAPPED = "meta=None content=[TextContent(type='text', text='{}')] isError=False"
INNER = WRAPPED.format('{"content": [{"type": "text", "text": "Total: 2\\\\nIDs: a, b"}]}')
LOOKED = "Looked up, as of then"
LONG_LOOK = f"cat {'a.py ' * 40}&& git -C /w commit -m 'x'"


@pytest.mark.parametrize(
    ("messages", "heading", "item"),
    [
        (called("run", INNER, tool_name="add"), "Calls",
         "run(tool_name=add) → Total: 2; IDs: a, b"),
        (called("run", WRAPPED.format(r"\x")), "Calls", "run()"),
        (called("getAll", '[[{"id": "H1"}, {"id": 2}], [{"id": "H3"}]]'), LOOKED,
         "getAll() → H1 + 2; H3"),
        (called("book", '{"at": 1, "error": "full"}', id="R1"), "Failed last",
         "book(id=R1) → at=1, error=full"),
        (called("add_task", "Tool call timed out.", task_name="x") * 2, "Failed last",
         "add_task(task_name=x) → Tool call timed out."),
        (called("add_task", "Added.", task_name="x"), "Calls", "add_task(task_name=x) → Added."),
        (called("search", "Error: too fast"), "Failed last", "search() → Error: too fast"),
        (called("search", "# All\nFound:\n- a\n- b"), LOOKED, "search() → - a; - b"),
        (called("get", '{"at": [{"day": 1, "id": "H"}, {"day": 2, "id": "I"}], "success": true}'),
         LOOKED, "get() → at=H 1; I 2, success=True"),
        (called("run", "ok", tool_name="write_file", params={"path": "/w/a.csv"}), "Files edited",
         "/w/a.csv"),
        (called("Edit", "No.", failed=True, path="/w/src/a.py")
         + run("1", "sed -i 's/a/b/' src/a.py && cat > b.md <<E\nx\nE", ""), "Files edited",
         "src/a.py, b.md"),
        (called("view", "x", path="/w/src/a.py") + called("edit", "", path="a.py"), "Files edited",
         "/w/src/a.py"),
        (run("1", LONG_LOOK, "fatal: no", failed=True) + run("2", "git commit", "ok"), "Commands",
         "git commit → ok"),
        ([assistant("I list it.\n```\nls /w\n```")], "Open calls", "ls /w"),
        ([*called("Skill", "Launching skill: review"), user("Look at each file. " * 60)],
         "Requests", "#1 Go."),
        ([*run("1", "ls", ""), assistant("Do:\n```\na\n```")], "Where it stood", "#4 Do: `a`"),
        ([*run("1", "ls", ""), assistant("It is.\n</bash>")], "Where it stood", "#4 It is."),
        ([assistant("It fails at b. The next step is d. So c. Next."), *run("1", "ls", "")] * 2,
         "Steps", "#2 It fails at b. So c."),
        ([assistant("The page is empty. Let me read the log instead."), *run("1", "ls", "")] * 2,
         "Steps", "#2 The page is empty. Let me read the log instead."),
        ([assistant("It is a."), assistant("Fine! Let me see:", call("x", "x")), result("", "x")],
         "Where it stood", "#2 It is a."),
    ],
)  # fmt: skip
def test_the_state_is_what_calls_gave(messages: list[Message], heading: str, item: str) -> None:
    """Whatever they are wrapped in. What was ended since, or announced, is not listed."""
    found = by_heading(summarised([user("Go."), *messages]).text)
    assert found[heading][:1] == [item]
    assert {heading} == found.keys() & {heading, "Failed last", LOOKED}


def test_a_result_is_shortened_where_room_is_short() -> None:
    """It ends in a mark then, and is whole where all fits."""
    found = json.dumps({f"field_{at}": "x" * 20 for at in range(15)})
    work = [user("Go."), *called("get", found), *WORK]
    (whole,), (line,) = (by_heading(summarised(work, tokens=n).text)[LOOKED] for n in (PLENTY, 230))
    assert whole.endswith("field_14=" + "x" * 20) and line.endswith("…") and len(line) <= 300


def test_output_after_messages_that_are_not_read_is_no_request() -> None:
    """The command before it may be among those that stay shown."""
    digest = digest_of([user("Go.")])
    digest.add(user("a.py\n(Open file: n/a)\n(Current directory: /)\nbash-$"), 7)
    assert list(digest.requests.values()) == ["Go."]


def test_every_finding_of_a_step_is_kept_and_has_the_room_that_is_left() -> None:
    """Its last sentence says what comes next, unless it is the only one."""
    step = "Case {0} is the one that fails. The check is next."
    talk = [assistant(step.format(at), call("c", "get_case", at=at)) for at in range(90)]
    only = assistant("The name of the port was misspelt everywhere.", call("c", "get_case"))
    messages = [user("Go on."), only, *talk, user("And now?"), assistant("All is well.")]
    whole, made = by_heading(summarised(messages).text), summarised(messages, tokens=600)
    assert whole["Steps"][:2] == [f"#2 {only.text}", "#3 Case 0 is the one that fails."]
    assert whole["Where it stood"] == [f"#92 {step.format(89)}", "#94 All is well."]
    assert by_heading(made.text)["Steps"] == whole["Steps"][-len(by_heading(made.text)["Steps"]) :]
    assert 580 < count(made.text) <= 600 and len(by_heading(made.unlisted)["Steps"]) > 20


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("Wrong flag!\n(Open file: n/a)\n(Current directory: /)\nbash-$", "check → Wrong flag!"),
        ("345\n", "check → 345"),
        ("lint\tpass\t2s\nTest\tfail\t51s\ndocs\tpass\t1s\n", "check → Test fail 51s"),
        ("one\ntwo\nthree\nIt says that the key is in the variable.\n", "check"),
    ],
)
def test_an_outcome_is_what_the_output_says_it_is(output: str, line: str) -> None:
    """A prompt says nothing, and the end of a long text no more than its middle."""
    lines = summarised([user("Go."), *run("1", "./check", output)]).text.splitlines()
    assert [each.partition("check")[2] for each in lines if "check" in each] == [line[5:]]


def test_output_that_is_sent_as_the_user_is_the_result_of_the_command() -> None:
    """The command in the last fence is the call, and no output is listed."""
    step = assistant("I run the tests.\n```bash\npytest -q\n```")
    output = user("<returncode>1</returncode>\n<output>\nE   KeyError: 'x'\n1 failed\n</output>")
    made = summarised([user("Fix the parser."), *[step, output] * 4])
    assert by_heading(made.text)["Failed last"] == ["pytest -q → E KeyError: 'x'"]
    made = summarised([output, *[step, output] * 4, step, user("Killed.")], made.text)
    assert by_heading(made.text)["Requests"] == ["#1 Fix the parser."]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The staging port is 8080.", "Actually, the staging port is now 9090."),
        ("CAP: Spending is capped at $500.", "CAP: Total spending must stay below $700."),
        ("Der Staging-Port ist 8080.", "Korrektur: der Staging-Port ist jetzt 9090."),
        ("The release owner is Ada Lovelace.", "This week the release owner is Grace Hopper."),
    ],
)
def test_only_the_newest_value_of_a_subject_is_listed(old: str, new: str) -> None:
    """Also where a message that stays shown has it. What is shown after all is forgotten.

    [summary.superseded]
    """
    other = told("The metrics port is 7000 on weekends.")
    text = summarised([*told(old), *other, *told(new)]).text
    assert old not in text and new in text and "7000" in text
    digest = digest_of([*told(old), *other])
    digest.replace_by(user(new))
    assert old not in fitted(digest, PLENTY, count).text
    digest.forget({3, 4}, 0)
    assert fitted(digest, PLENTY, count).text == NOTHING
    texts = [summarised(told(old)).text, summarised(told(new)).text]
    assert without_replaced(texts, count) == [NOTHING, texts[1]]


def test_statements_of_one_shape_about_different_things_stay() -> None:
    """And an assistant's statement replaces no user's."""
    ports = ["The Redis port is 6379.", "The Postgres port is 5432.", "The timeout is 30 seconds."]
    ports += ["Invoice 7 is about $300.", "Invoice 8 is about $400."]
    messages = [message for port in ports for message in told(port)]
    messages += [user("Go on."), assistant("The Redis port is 6380, as the file says.")]
    assert all(port in summarised(messages).text for port in ports)


def test_a_changed_value_is_marked_and_has_room_first() -> None:
    """Also in later rounds, whatever was stated after it. [summary.superseded]"""
    messages = told("FACT: The staging port is 8080.") + told("FACT: The staging port is 9090.")
    houses = (f"FACT: House {number} is painted in {number} colours." for number in range(30))
    messages += [message for house in houses for message in told(house)]
    made = summarised(messages, tokens=90)
    for _ in range(2):
        assert "staging port is 9090. *" in made.text and "8080" not in made.text
        assert made.text.splitlines()[1] == "## Stated by the user (* changed)"
        made = summarised([], made.unlisted, made.text, tokens=90)


def test_a_sentence_of_a_request_stays_in_it() -> None:
    """So a limit for one request ends with it; only a labelled sentence holds on."""
    first = "Only check src/a.py before 2027-01-05, repair nothing.\nRULE: Never push to main."
    text = summarised([user(first), assistant("It is broken. " * 9), user("Repair it.")]).text
    assert by_heading(text)["Requests"] == [f"#1 {first}", "#3 Repair it."]
    long = user(f"{'It is as it was. ' * 300}\nRULE: Never push to main.\n{'So be it. ' * 300}")
    assert "RULE: Never push to main." in summarised([long, *WORK], tokens=120).text


def test_of_a_long_request_what_was_pasted_is_left_out_first() -> None:
    """Its listed and emphasised sentences are shown before others."""
    pasted = "\n".join(f"value_{number} = compute({number});" for number in range(300))
    said = [f"The story goes on in part {number} as it did before." for number in range(60)]
    said[30] = "- Leave the generated files alone"
    request = "\n".join(["<files>", "Repair it.", *said, "```", pasted, "```", "Thanks."])
    made = summarised([user(request)], tokens=240).text
    (shown,) = by_heading(made)["Requests"]
    assert shown.startswith("#1 <files>") and shown.endswith("Thanks.") and count(made) > 180
    assert said[30] in shown and "compute" not in shown and "part 0 " in shown


def test_what_many_requests_have_is_left_out_before_what_one_alone_has() -> None:
    """So that each can be told from the others; where a shell stood is left out as well."""
    frame = "Solve this.\nThe file is number {0}.\n" + "- Be as careful as you can here.\n" * 9
    asked = [user(frame.format(number) + f"(Folder: /w/{number})\n$") for number in range(4)]
    text = summarised(asked, tokens=250).text
    assert all(f"The file is number {number}." in text for number in range(4))
    assert "/w/1" not in text and "/w/2" not in text


def test_older_requests_are_first_shown_by_their_sentences_with_values() -> None:
    """The rest has room later. Of one that is replaced as a whole nothing is left to list."""
    around = "It looks fine to me so far. {0} Go on with what you were doing, please."
    hosts = [f"Use port 80{10 + at} for host {chr(97 + at) * 5}." for at in range(20)]
    asked = [around.format(host) for host in hosts]
    talk = [each for text in asked for each in (user(text), assistant("I go. " * 20))]
    made = summarised([user("Go."), *talk], tokens=420)
    assert all(f"[…] {host} […]" in made.text for host in hosts[:10])
    assert asked[-1] in made.text and all(host in made.text for host in hosts)
    later = by_heading(summarised([], made.unlisted, made.text).text)["Requests"]
    assert [each.partition(" ")[2] for each in later] == ["Go.", *asked]
    question = assistant("It is all there. Which port do you want?")
    talk = [user("Go."), question, user("The staging port is 8011."), assistant("I go. " * 20)]
    cut = summarised([*talk, user("No, the staging port is 8012.")]).text
    assert "8011" not in cut and "Which port" not in cut


def test_what_a_user_states_is_listed_apart_from_talk_before_it() -> None:
    """So that the value has room first, with what follows it and its correction."""
    said = [*told("Thanks a lot. The port of host a is 8010. It is new.")[:1], *told("No, 8011.")]
    stated = ["Thanks a lot.", "The port of host a is 8010. It is new. → No, 8011."]
    assert by_heading(summarised(said).text) == {"Stated by the user": stated}


def test_no_one_speaks_for_the_user() -> None:
    """What a call is for is no value, a refused question no answer; a question is answered once.

    A prompt that a command stands for is not typed.
    """
    step = "The lower limit is 50 ms there. Let me set it to 60 ms, then run it."
    asked = assistant(step, call("q", "AskUserQuestion", questions=[{"question": "Which?"}]))
    refused = [asked, result("The user doesn't want to proceed.", "q"), assistant("And now?")]
    digest = digest_of([user("Go on."), *refused, user("yes"), user("today")])
    assert list(digest.stated) == ["the lower limit is 50 ms there"]
    assert fitted(digest, PLENTY, count).text.count("asked: And now?") == 1
    talk = [assistant("Shall I delete the database?"), user("no"), assistant("", call("b", "ls"))]
    text = summarised([user("Tidy up."), *talk, result("a", "b"), user("now run the tests")]).text
    assert "no\n  (asked: Shall I delete the database?)" in text and "now run" in text
    typed = [user("<command-name>/review</command-name>"), user("Look at each file. " * 60)]
    assert by_heading(summarised(typed).text)["Requests"] == ["#1 /review"]


def test_statements_outlast_everything_else() -> None:
    """Fifty rounds of talk push no statement out, and what has no room is unlisted."""
    made = summarised(WORK, tokens=300)
    for number in range(50):
        talk = [user(f"And what of case {number}?"), assistant(f"Case {number} is fine. " * 6)]
        made = summarised(talk, made.unlisted, made.text, tokens=300)
        assert count(made.text) <= 300
    found = by_heading(made.text)
    assert found["Stated by the user"][-1] == "CONSTRAINT: The budget cap is $500 in total."
    assert REQUEST in found["Requests"][0]
    assert "case 20?" in made.unlisted
    assert re.search(r"(?s)case 20\?.*case 30\?", summarised([], made.unlisted, made.text).text)


def test_a_long_request_is_shown_by_whole_sentences() -> None:
    """Its first and its last sentences, and never half a sentence."""
    sentences = [f"Step {number} of the plan is the one after it." for number in range(400)]
    (shown,) = by_heading(summarised([user(" ".join(sentences))], tokens=200).text)["Requests"]
    head, left_out, tail = shown.removeprefix("#1 ").split("\n")
    assert "characters left out" in left_out
    assert head.startswith(sentences[0]) and tail.endswith(sentences[-1])
    assert all(f"{part}." in sentences for part in f"{head} {tail}".rstrip(".").split(". "))


def test_the_last_line_says_how_to_find_the_rest() -> None:
    """It names `recall` where the payload offers it, else the receipt."""
    text = summarised(WORK, closing=Closing(6, 41, names_recall=True)).text
    assert text.endswith(f"\n{MORE}`recall`, messages 6 to 41.")
    assert "recall" not in summarised(WORK, closing=Closing(6, 41)).text


@pytest.mark.parametrize(
    "unit",
    ["a/", "/", ".", "`", "ref=", "- ", "Error: ", "<a-b>", "</a-b>", "|x|y|\n", "(", "must ",
     "今", "は", "x:", "1.", "```\n", "\n", "\"", "exit code 1 ", "never a b. ", "\u0300", "A ",
     "A: b. ", "Aa ", "#1 ", "1 ", "$1,", "a-1 ", "**", "to a ", "since, ", "so ",
     "cat ", "sed -i -a ", "path"],
)  # fmt: skip
def test_hostile_text_takes_linear_time(unit: str) -> None:
    """No run of characters makes the reading explode. [errors.no-500]"""
    text = unit * (100_000 // len(unit))
    messages = [user(text), assistant(text), *run("c", text, text), user(f"<output>{text}")]
    hostile: dict[str, Any] = {text[:20_000]: {f"k{at}": at for at in range(2000)}}
    messages += called("read", "ok", **hostile)
    began = time.process_time()
    summarised([], summarised(messages, tokens=500).text)
    assert time.process_time() - began < 1.5


WORDS = st.text(max_size=60) | st.sampled_from(
    [
        *("I decided to go.", "The port is 80 here.", "Actually the port is 81 here.", "ok?"),
        *("## Requests", "- x", "- #3 x", TITLE, NOTHING, f"{MORE}x", "必ず日本語で。", "ok"),
        *("RULE: Use port 80.", "RULE:\nx", "#9 a", "a → b → c", "```\na\n```", "[x] #1 y"),
        *("a\n  b", "<output>x</output>", "x. " * 90, "in /a", "/a/b/c.py, d.py", "```\nls\n```"),
    ]
)
MESSAGES = st.lists(
    st.one_of(
        WORDS.map(user),
        WORDS.map(assistant),
        st.tuples(WORDS, WORDS).map(
            lambda two: assistant(two[0], call("c", "bash", command=two[1], path="a/b.py"))
        ),
        WORDS.map(lambda text: assistant("", call("t", "TodoWrite", todos=[{"content": text}]))),
        st.tuples(WORDS, st.booleans()).map(lambda two: result(two[0], "c", failed=two[1])),
    ),
    max_size=12,
)


@given(MESSAGES, WORDS, st.integers(0, 300))
def test_summaries_are_bounded_and_repeatable(
    messages: list[Message], previous: str, tokens: int
) -> None:
    """Never longer than allowed, or one line; the same input gives the same text."""
    made = summarised(messages, previous, tokens=tokens)
    assert count(made.text) <= tokens or made.text == NOTHING
    assert summarised(messages, previous, tokens=tokens) == made
    for item in made.headings:
        assert item.found == item.kept + item.superseded + item.dropped
        assert min(item.kept, item.superseded, item.dropped) >= 0


@given(MESSAGES, MESSAGES, st.integers(60, 400))
def test_a_round_without_new_messages_changes_nothing(
    first: list[Message], second: list[Message], tokens: int
) -> None:
    """A summary of an earlier one alone is the earlier one."""
    text = summarised(second, summarised(first).text, tokens=tokens).text
    assert summarised([], text, tokens=tokens).text == text


def test_a_message_that_begins_like_a_summary_is_read_as_one() -> None:
    """A conversation that goes on from another one's payload keeps its headings.

    Of a harness's own summary the order and, once the work went on, the next step are left out.
    """
    frame = (
        "This session is being continued from a previous conversation.\n\nSummary:\n{}\n\nGo on."
    )
    resumed = [user(frame.format("1. Asked: a\n2. Next: b")), assistant("I did b, and it works.")]
    assert by_heading(summarised(resumed).text)["Earlier summary"] == ["1. Asked: a"]
    text = summarised(WORK).text
    again = summarised([user(f"[Earlier summary, lossy: {text}]")]).text
    assert by_heading(again).keys() == by_heading(text).keys()
