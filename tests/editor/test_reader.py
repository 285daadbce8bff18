"""The reader of lazy snippets: what its first reading keeps, changes and takes away, and its aligner.

The cheapest path of the aligner costs what trying every step costs, on small random snippets.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import chain

import pytest

from editor.execution import clear_caches
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from editor.reader.alignment import Aligner
from editor.reader.candidates import FileLines, LineCandidates, Snippet
from editor.reader.costs import BOUND, ELIDED, GAP, OUTSIDE, CostWeights
from editor.reader.features import FEATURES
from editor.reader.reader import limit_certainties
from editor.types import Merged, Sketch, Unresolved

PYTHON = "import os\n\n\ndef first(a):\n    b = a + 1\n    return b\n\n\ndef second(a):\n    log(a)\n    return a\n"
RUBY = (
    "describe 'Cart' do\n  it 'adds' do\n    cart = Cart.new\n    cart.add(1)\n    assert_equal 1, cart.size\n  end\n\n"
    "  it 'is empty' do\n    cart = Cart.new\n    assert_equal 0, cart.size\n  end\nend\n"
)
C_PLUS_PLUS = (
    "struct Entry : Base {\n  int first;\n  int second;\n\n  bool is_end() const { return kind == END; }\n};\n\n"
    "class Table {\n  Entry entry;\n};\n"
)


def first_reading(original: str, edit: str, path: str, said: tuple[str, ...] = ()) -> str:
    """Return the merged text, or the first candidate."""
    outcome = merge(original, parse(edit, "lazy", path), find_language(path), said)
    if isinstance(outcome, Merged):
        return outcome.text
    assert isinstance(outcome, Unresolved)
    return outcome.candidates[0].text


def readings(original: str, edit: str, path: str, said: tuple[str, ...] = ()) -> list[str]:
    """Return the candidates of an edit that has no answer."""
    outcome = merge(original, parse(edit, "lazy", path), find_language(path), said)
    assert isinstance(outcome, Unresolved)
    return [one.text for one in outcome.candidates]


def test_fences_stand_in_the_order_of_the_file() -> None:
    edit = (
        "First the second function:\n\n```python\ndef second(a):\n    log(a, 2)\n    return a\n```\n\n"
        "and its import:\n\n```python\nimport os\nimport sys\n```\n"
    )
    meant = PYTHON.replace("log(a)", "log(a, 2)").replace("import os\n", "import os\nimport sys\n")
    assert first_reading(PYTHON, edit, "x.py") == meant


def test_each_fence_has_an_indentation_of_its_own() -> None:
    original = "class A:\n    def f(self):\n        return 1\n\n\ndef g():\n    use()\n    return 2\n"
    edit = (
        "The method:\n\n```python\ndef f(self):\n    return 10\n```\n\nand the function:\n\n"
        "```python\ndef g():\n    use(1)\n    return 2\n```\n"
    )
    meant = original.replace("return 1\n", "return 10\n").replace("use()", "use(1)")
    assert first_reading(original, edit, "x.py") == meant


def test_a_definition_shown_from_head_to_end_keeps_no_hidden_line() -> None:
    snippet = (
        "# ... existing code ...\n\ndef first(a):\n    return a + 1\n\n\ndef second(a):\n    # ... existing code ...\n"
    )
    meant = PYTHON.replace("    b = a + 1\n    return b\n", "    return a + 1\n")
    assert first_reading(PYTHON, snippet, "x.py") == meant


def test_a_new_block_with_a_title_takes_no_line_of_another() -> None:
    snippet = (
        "describe 'Cart' do\n  # ... existing tests ...\n\n  it 'adds two' do\n    cart = Cart.new\n    cart.add(1)\n"
        "    cart.add(2)\n    assert_equal 2, cart.size\n  end\nend\n"
    )
    new = snippet.split("tests ...\n\n")[1].removesuffix("end\n")
    assert first_reading(RUBY, snippet, "cart_test.rb") == RUBY.removesuffix("end\n") + "\n" + new + "end\n"


def test_a_new_definition_takes_no_line_of_one_that_is_shown() -> None:
    new = "struct Other : Base {\n  int first;\n  int second;\n\n  bool is_end() const { return kind == OTHER; }\n};\n"
    snippet = f"// ...\nstruct Entry : Base {{\n  // ...\n}};\n\n{new}\nclass Table {{\n  // ...\n}};\n"
    assert first_reading(C_PLUS_PLUS, snippet, "x.cpp") == C_PLUS_PLUS.replace("};\n\nclass", f"}};\n\n{new}\nclass")


def test_a_name_that_the_file_has_takes_the_place_of_no_other() -> None:
    original = "".join(
        f"def handle_{name}(event):\n    run('{name}', event)\n\n\n" for name in ("open", "opened", "close")
    )
    snippet = "# ...\ndef handle_opened(event):\n    run('opened', event, 2)\n# ...\n"
    assert first_reading(original, snippet, "x.py") == original.replace("'opened', event", "'opened', event, 2")


def test_a_new_function_is_inserted_whole_though_its_lines_stand_in_another() -> None:
    old = (
        "export function subscribe(\n  manager: Manager,\n  onEvent: (event: Event) => void,\n) {\n"
        "  return manager.on((event) => {\n    if (event.type === 'open') {\n      onEvent(event.payload);\n    }\n"
        "  });\n}\n"
    )
    new = old.replace("subscribe", "subscribeToState").replace("'open'", "'state'")
    original = f"import {{ Manager }} from './manager';\n\n{old}"
    edit = (
        "The type:\n\n```ts\nimport { Event, Manager } from './manager';\n```\n\n"
        f"At the end of the file, the helper:\n\n```ts\n{new}```\n"
    )
    meant = f"{original}\n{new}".replace("{ Manager }", "{ Event, Manager }")
    outcome = merge(original, parse(edit, "lazy", "x.ts"), "typescript", ("Add subscribeToState at the end",))
    assert isinstance(outcome, Unresolved)
    assert meant in [one.text for one in outcome.candidates]


def test_a_comment_alone_in_a_body_stands_for_that_body() -> None:
    snippet = "# ...\ndef first(a):\n    # adds one\n\ndef second(a):\n    log(a, 2)\n    return a\n"
    assert first_reading(PYTHON, snippet, "x.py") == PYTHON.replace("log(a)", "log(a, 2)")


def test_a_comment_that_is_quoted_as_removed_goes() -> None:
    original = f"# V1\n{PYTHON}"
    snippet = "import os\nimport sys\n\n# ... existing code ...\n"
    meant = PYTHON.replace("import os\n", "import os\nimport sys\n")
    assert first_reading(original, snippet, "x.py", ('Import sys and remove the "# V1" comment',)) == meant


def test_a_statement_in_another_layout_replaces_the_one_that_stands() -> None:
    original = "int f() {\n    auto x =\n        {\n            {1, 2},\n            {3, 4}};\n    return x;\n}\n"
    snippet = "    auto x = {{1, 2},\n              {3, 4}};\n"
    meant = "int f() {\n    auto x = {{1, 2},\n              {3, 4}};\n    return x;\n}\n"
    assert first_reading(original, snippet, "x.cpp", ("Lay the list out anew",)) == meant


def test_lines_keep_the_tabs_that_the_file_has_beside_them() -> None:
    original = (
        "int a() {\n    use(1);\n    use(2);\n    use(3);\n    return 1;\n}\n\n"
        "int length(char c) {\n\tif (c < 8) return 1;\n\telse return 4;\n}\n"
    )
    new = "int length(char c) {\n\tif (c < 8) return 1;\n\telse if (c < 16) return 4;\n\telse return 8;\n}\n"
    meant = original.split("int length")[0] + new
    assert first_reading(original, f"/* ... */\n\n{new}", "x.c") == meant


def test_the_outermost_lines_of_a_block_say_how_far_it_is_moved() -> None:
    body = ["total = start(a)", "total += first(a)", "total += second(a)", "total += third(a)", "store(total)"]
    original = "def f(a):\n    if a:\n" + "".join(f"        {line}\n" for line in body) + "    return a\n"
    meant = "def f(a):\n" + "".join(f"    {line}\n" for line in body) + "    return a\n"
    assert first_reading(original, meant, "x.py", ("Drop the check of a, do it always",)) == meant


def test_a_key_of_one_section_is_not_that_of_another() -> None:
    original = "[client]\nhost = a\nport = 80\n\n[server]\nworkers = 4\ndebug = false\nreload = no\n"
    snippet = "[client]\nhost = a\nport = 80\n# ...\nworkers = 4\ncolor = no\ndebug = false\n\n# ...\n"
    outcome = merge(original, parse(snippet, "lazy", "a.ini"))
    assert isinstance(outcome, Unresolved)


def test_a_reading_above_the_bar_is_the_answer_and_says_how_sure_it_is() -> None:
    snippet = "# ...\ndef second(a):\n    log(a, 2)\n    return a\n# ...\n"
    outcome = merge(PYTHON, parse(snippet, "lazy", "x.py"), "python")
    assert isinstance(outcome, Merged)
    assert outcome.text == PYTHON.replace("log(a)", "log(a, 2)")
    assert outcome.certainty in ("certain", "likely")
    assert outcome.confidence is not None
    assert outcome.confidence == outcome.candidates[0].confidence > 0.9


MEANT_OTHERWISE = {
    "a line goes behind one that stands twice": (
        "def one():\n    # close the files\n    del first\n\ndef two():\n    # close the files\n    pass\n",
        "# ...\n    # close the files\ndef two():\n# ...\n",
    ),
    "a line that stands in the file takes another's place": (
        "a(\n    color: gray,\n    italic: true,\n)\nb(\n    color: blue,\n)\n",
        "# ...\n    color: gray,\n# ...\n",
    ),
    "a line may be a note about the edit": (
        PYTHON,
        "# ...\ndef second(a):\n    # removed the check\n    log(a, 2)\n    return a\n# ...\n",
    ),
    "a placeholder stands behind code": (
        PYTHON,
        "# ...\ndef second(a):\n    log(a, 2)  # ... existing code ...\n    return a\n# ...\n",
    ),
    "a line belongs to another format": (PYTHON, "import os\n=======\n\n\ndef first(a):\n# ...\n"),
    "the prose removes what the code does not": (
        PYTHON,
        "Remove the call of `log`, and add this:\n\n```python\nimport os\nimport sys\n```\n",
    ),
}


@pytest.mark.parametrize(("original", "snippet"), MEANT_OTHERWISE.values(), ids=MEANT_OTHERWISE)
def test_what_may_be_meant_otherwise_is_no_answer_however_probable_it_is(original: str, snippet: str) -> None:
    outcome = merge(original, parse(snippet, "lazy", "x.py"), "python")
    assert isinstance(outcome, Unresolved), outcome


def test_a_deletion_is_never_certain() -> None:
    snippet = "# ...\ndef second(a):\n    return a\n# ...\n"
    outcome = merge(PYTHON, parse(snippet, "lazy", "x.py"), "python")
    assert not isinstance(outcome, Merged) or outcome.certainty == "likely"


SAVING = (
    "import os\n\n\ndef load(path):\n    text = read(path)\n    check(text)\n    return parse(text)\n\n\n"
    "def save(path, value):\n    text = render(value)\n    check(text)\n    write(path, text)\n"
)


def test_new_lines_in_two_places_may_be_certain() -> None:
    snippet = (
        "import os\n# ...\n    check(text)\n    log(text)\n    return parse(text)\n"
        "# ...\n    check(text)\n    log(value)\n    write(path, text)\n"
    )
    outcome = merge(SAVING, parse(snippet, "lazy", "x.py"), "python")
    assert isinstance(outcome, Merged)
    assert outcome.text == SAVING.replace("    return", "    log(text)\n    return").replace(
        "    write", "    log(value)\n    write"
    )
    assert outcome.certainty == "certain"
    assert outcome.confidence is not None  # a reading, no rule


@pytest.mark.parametrize(
    ("names", "at_most"),
    [
        ({"insert", "more_runs"}, ("certain", "likely")),
        ({"sub"}, ("certain", "likely")),
        ({"sub", "insert", "more_runs"}, ("likely",)),  # one of them may be context that has changed since
        ({"insert", "reindented"}, ()),  # wrong in 5 of 11 files that had changed since
    ],
)
def test_what_a_reading_assumes_limits_how_sure_it_is(names: set[str], at_most: tuple[str, ...]) -> None:
    assert limit_certainties([float(name in names) for name in FEATURES]) == at_most


def test_a_moved_definition_stands_once() -> None:
    original = PYTHON + "\n\ndef third(a):\n    check(a)\n    return a * 3\n"
    third = "def third(a):\n    check(a)\n    return a * 3\n"
    snippet = f"import os\n\n\n{third}\n\ndef first(a):\n    # ...\n\n# ...\n"
    assert first_reading(original, snippet, "x.py").count("def third(a):") == 1


def test_readings_change_something_and_say_how_sure_they_are() -> None:
    snippet = "# ...\ndef third(a):\n    return a\n# ...\n"
    outcome = merge(PYTHON, parse(snippet, "lazy", "x.py"), "python")
    assert isinstance(outcome, Unresolved)
    assert outcome.candidates
    assert all(one.text != PYTHON for one in outcome.candidates)
    sure = [one.confidence for one in outcome.candidates]
    assert all(one is not None for one in sure)
    assert sum(one or 0.0 for one in sure) <= 1.001


def test_an_edit_that_comes_again_has_the_same_readings_from_memory_as_anew() -> None:
    text = "limit = 10\nretries = 3\n\n\ndef load(path):\n    return open(path).read()\n"
    edit = parse("retries = 5\n\ndef load(path):\n    # ... existing code ...\n", "lazy")
    first, again = merge(text, edit, "python"), merge(text, edit, "python")
    clear_caches()
    assert isinstance(first, Merged | Unresolved)
    assert first.candidates
    assert first == again == merge(text, edit, "python")


DESCRIBED = """describe 'errors' do
  it 'dumps the trace' do
    app = mock_app(Base) {
      enable :dump
      get '/' do
        raise
      end
    }

    get '/'
    assert body.include?('trace')
  end
end

describe 'sessions' do
  it 'is off' do
    assert !app.sessions?
  end
end
"""


def test_a_new_test_much_like_another_goes_behind_the_marker_and_tears_no_other_apart() -> None:
    new = DESCRIBED.partition("  it 'dumps")[2].partition("end\n\ndescribe")[0].replace("raise", "raise NotFound")
    new = "  it 'dumps" + new.replace("dumps the trace", "hides 404").replace(" the trace", " no 404")
    snippet = f"describe 'errors' do\n  # ... existing tests ...\n\n{new}end\n"
    meant = DESCRIBED.replace("  end\nend\n\ndescribe", f"  end\n\n{new}end\n\ndescribe")
    assert first_reading(DESCRIBED, snippet, "errors_test.rb") == meant


def test_a_definition_that_is_said_to_move_stands_once_though_its_head_has_changed() -> None:
    original = PYTHON + "\n\ndef third(a):\n    check(a)\n    log(a)\n    return a * 3\n"
    third = "async def third(a):\n    check(a)\n    log(a)\n    return a * 3\n"
    snippet = f"import os\n\n\n{third}\n\ndef first(a):\n    # ...\n\n# ...\n"
    said = ("Move third to the top and make it async.",)
    meant = PYTHON.replace("import os\n", f"import os\n\n\n{third.rstrip()}\n")
    assert meant in readings(original, snippet, "x.py", said)


def test_a_new_guard_may_stand_above_one_like_it() -> None:
    original = (
        "class Door {\n  open(request: Request) {\n    if (request.isKnown === true) {\n"
        "      log(`known: ${request}`)\n      return { approved: true }\n    }\n    return this.ask(request)\n  }\n}\n"
    )
    guard = "    if (this.isOpen === true) {\n      log(`open: ${request}`)\n      return { approved: true }\n    }\n"
    snippet = f"// ...\n  open(request: Request) {{\n{guard}    // ... rest of the method unchanged\n  }}\n// ...\n"
    inserted = original.replace("    if (request", f"{guard}    if (request")
    assert inserted in readings(original, snippet, "door.ts", ("Let everyone in while the door is open.",))


def test_a_lone_fence_goes_beside_the_definition_that_the_prose_names_at_its_depth() -> None:
    original = "class Shop:\n    def open(self):\n        return 1\n\n    def close(self):\n        return 2\n"
    fence = "```python\ndef clean(self):\n    self.sweep()\n    return 3\n```\n"
    edit = f"Add this method to Shop, between `open` and `close`:\n\n{fence}"
    new = "    def clean(self):\n        self.sweep()\n        return 3\n\n"
    assert first_reading(original, edit, "shop.py") == original.replace("    def close", f"{new}    def close")


def test_a_new_entry_of_a_list_need_not_take_the_place_of_another() -> None:
    def step(name: str) -> str:
        head = f"      - name: Publish {name}\n        if: skip != 'true'\n"
        return f"{head}        run: |\n          cd packages/{name}\n          npm publish\n"

    head = "jobs:\n  publish:\n    steps:\n"
    original = head + "".join(map(step, ("shared", "agents", "core", "sdk")))
    snippet = "      # ...\n          npm publish\n" + step("hub") + "      - name: Publish core\n        # ...\n"
    meant = head + "".join(map(step, ("shared", "agents", "hub", "core", "sdk")))
    assert meant in readings(original, snippet, "publish.yml")


def test_an_excerpt_without_a_marker_that_leaves_statements_out_is_no_answer() -> None:
    original = (
        "class Limiter:\n    def allow(self, client):\n        now = time.monotonic()\n"
        "        recent = [at for at in self.seen[client] if now - at < WINDOW]\n        self.seen[client] = recent\n"
        "        if len(recent) >= self.limit:\n            return False\n"
        "        recent.append(now)\n        return True\n"
    )
    snippet = (
        "        now = time.monotonic()\n        if len(recent) + cost > self.limit:\n            return False\n"
        "        recent += [now] * cost\n        return True\n"
    )
    found = readings(original, snippet, "limits.py")
    assert any("self.seen[client] = recent" in text for text in found)
    assert any("self.seen[client] = recent" not in text for text in found)


LINES = (
    "import os",
    "def load(path):",
    "def save(path, data):",
    "    value = path + 1",
    "    value = path + 2",
    "    return value",
    "    if value:",
    "        return None",
    "LIMIT = 10",
    "}",
    "# a comment",
)


def random_texts(seed: int) -> tuple[str, str]:
    """Return a file of up to eight lines, and a snippet: some of its lines, others, and markers."""
    source = random.Random(seed)
    file = [source.choice(LINES) for _ in range(source.randint(1, 8))]
    shown: list[str] = []
    for line in file:
        what = source.random()
        if what < 0.5:
            shown.append(line)
        elif what < 0.7:
            shown.append("# ... existing code ...")
        if source.random() < 0.3:
            shown.append(source.choice(LINES))
    return "\n".join(file) + "\n", "\n".join([*shown, "limit = 1"]) + "\n"


def cheapest_by_trying_all(aligner: Aligner) -> float:
    """Return the least cost of a path by steps that take at most one line of the file that is skipped."""

    @cache
    def cost(at: int, line: int, state: int) -> float:
        if at == aligner.size and line == aligner.num_lines:
            return float(aligner.exits[at, state, line])
        ways = [price + cost(end, below, after) for price, _, end, below, after in moves(at, line, state)]
        return min(ways, default=1e9)

    def moves(at: int, line: int, state: int) -> list[tuple[float, str, int, int, int]]:
        found = list(aligner._list_moves(at, line, state))
        if state in (GAP, OUTSIDE, ELIDED) and line < aligner.num_lines:
            if state != GAP or aligner._mask_marker_scope(at)[line]:
                found.append((float(aligner.costs.skip[state][line]), "skip", at, line + 1, state))
            else:
                price = aligner.weights.leave_scope + float(aligner.costs.skip[OUTSIDE][line])
                found.append((price, "skip", at, line + 1, OUTSIDE))
        return found

    opened = 0.0 if aligner.snippet.items[0].kind == "marker" else aligner.weights.open_start
    return min(cost(0, 0, BOUND), opened + cost(0, 0, ELIDED))


@pytest.mark.parametrize("seed", range(80))
def test_the_best_path_costs_what_trying_every_step_costs(seed: int) -> None:
    text, snippet = random_texts(seed)
    edit = parse(snippet, "lazy", "x.py")
    assert isinstance(edit.changes, Sketch)
    file = FileLines(text, "python")
    shown = Snippet(edit.changes, file, ("Move load and add save.",))
    aligner = Aligner(file, shown, LineCandidates(file, shown), CostWeights())
    paths = aligner.find_best_paths(12, 9.0)
    costs = [path.cost for path in paths]
    assert costs == pytest.approx(sorted(costs))
    assert costs[0] == pytest.approx(cheapest_by_trying_all(aligner))
    for path in paths:
        taken = [range(step.item, step.item_end) for step in path.steps if step.kind not in ("skip", "delete")]
        assert list(chain.from_iterable(taken)) == list(range(len(shown)))
