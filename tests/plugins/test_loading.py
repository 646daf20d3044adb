"""Loading plugins: each in isolation, each failure kept."""

from __future__ import annotations

from typing import Any

import pytest
from plugin_site import Site, backend_source

from accel_bridge.errors import PluginError
from accel_bridge.plugins import candidates
from accel_bridge.plugins.candidates import FailedPlugin
from accel_bridge.plugins.manager import Plugins, load_plugins
from accel_bridge.process.environment import PluginChoice

#: The start of a plugin with one hook; the name of the hook follows.
HOOK = "from accel_bridge.plugin import hookimpl\n@hookimpl\ndef "
BUILT_IN = {"cpu", "cuda", "ascend"}


def names(plugins: Plugins) -> set[str]:
    return {found.item.name for found in plugins.backends()}


def failure(plugins: Plugins, name: str) -> FailedPlugin:
    (failed,) = [failed for failed in plugins.failed if failed.name == name]
    return failed


def test_the_built_in_backends_are_plugins() -> None:
    plugins = load_plugins()
    assert not plugins.failed
    assert names(plugins) >= BUILT_IN
    assert {plugin.name for plugin in plugins.loaded if plugin.builtin} == {
        *BUILT_IN,
        "apps",
        "megatron",
        "mindspeed",
        "pretrain",
    }


@pytest.mark.parametrize(
    ("source", "stage", "error"),
    [
        ("import no_such_library", "import", "No module named 'no_such_library'"),
        ("raise SystemExit(2)", "import", "SystemExit: 2"),
        ("x = (", "import", "SyntaxError"),
        ("", "registration", "implements no hook"),
        (
            HOOK + "accel_bridge_backend(): pass",
            "registration",
            "unknown hook 'accel_bridge_backend'",
        ),
        # Of such a plugin no hook is left, not even one that is right.
        (
            backend_source("broken") + "\n@hookimpl\ndef accel_bridge_typo(): pass\n",
            "registration",
            "unknown hook 'accel_bridge_typo'",
        ),
        (
            HOOK.replace("hookimpl\ndef", "hookimpl(wrapper=True)\ndef")
            + "accel_bridge_backends(): return (yield)",
            "registration",
            "has a hook wrapper",
        ),
        (
            HOOK + "accel_bridge_patches(bakcend): pass",
            "registration",
            "bakcend",
        ),
        (
            HOOK + "accel_bridge_backends(): 1 / 0",
            "accel_bridge_backends",
            "ZeroDivisionError",
        ),
        (
            HOOK + "accel_bridge_backends(): return [3]",
            "accel_bridge_backends",
            "3 is not an accel_bridge.plugin.Backend",
        ),
        (
            HOOK + "accel_bridge_backends(): return 3",
            "accel_bridge_backends",
            "TypeError",
        ),
        (
            backend_source("broken").replace("priority = 5", "priority = 'high'"),
            "accel_bridge_backends",
            "priority must be of type int",
        ),
        (
            backend_source("broken").replace("def device", "def devcie"),
            "accel_bridge_backends",
            "abstract",
        ),
    ],
)
def test_a_broken_plugin_stops_nobody_else(site: Site, source: str, stage: str, error: str) -> None:
    site.install("broken-pkg", {"broken_mod": source}, {"broken": "broken_mod"})
    site.install("toy-pkg", {"toy_mod": backend_source("toy")}, {"toy": "toy_mod"})
    plugins = load_plugins()
    assert names(plugins) >= {*BUILT_IN, "toy"}
    assert "broken" not in names(plugins)
    failed = failure(plugins, "broken")
    assert failed.stage == stage
    assert error in failed.error
    assert failed.distribution == "broken-pkg 1.0"
    assert "Traceback" in str(failed.traceback)


def test_of_two_plugins_with_one_name_the_first_stays_and_both_are_named(site: Site) -> None:
    site.install("a-pkg", {"a_mod": backend_source("a")}, {"same": "a_mod"})
    site.install("b-pkg", {"b_mod": backend_source("b")}, {"same": "b_mod"})
    site.install("aaa", {"fake_cuda": backend_source("fake")}, {"cuda": "fake_cuda"})
    plugins = load_plugins()
    assert "a" in names(plugins)
    assert not {"b", "fake"} & names(plugins)
    failed = failure(plugins, "same")
    assert failed.stage == "duplicate"
    assert "a-pkg 1.0" in failed.error
    assert "b-pkg 1.0" in failed.error
    # A built-in one comes first.
    assert [plugin.builtin for plugin in plugins.loaded if plugin.name == "cuda"] == [True]
    assert failure(plugins, "cuda").stage == "duplicate"


@pytest.mark.parametrize("word", ["toy", "toy_mod", "toy-pkg", "toy-pkg 1.0"])
def test_a_plugin_can_be_left_out_by_name_module_or_distribution(site: Site, word: str) -> None:
    site.install("toy-pkg", {"toy_mod": "1 / 0"}, {"toy": "toy_mod"})
    plugins = load_plugins(PluginChoice(excluded=(word,)))
    assert not plugins.failed
    assert names(plugins) == BUILT_IN


def test_a_module_path_is_loaded_in_addition(site: Site) -> None:
    site.install("plain", {"plain_mod": backend_source("plain")})
    assert "plain" not in names(load_plugins())
    assert "plain" in names(load_plugins(PluginChoice(extra=("plain_mod",))))


def test_without_the_installed_package_the_error_says_how_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "entry_points_of", lambda *_: [])
    with pytest.raises(PluginError) as caught:
        load_plugins()
    assert "pip install -e ." in caught.value.next


DECLARES = """
from accel_bridge.plugin import Command, Variable, hookimpl

@hookimpl
def accel_bridge_variables():
    return [Variable("{variable}", "", "anything", "does nothing", str)]

@hookimpl
def accel_bridge_commands():
    return [Command("{command}", "does nothing", "toy:main")]
"""


@pytest.mark.parametrize(
    ("hook", "returns", "error"),
    [
        ("variables", "1 / 0", "ZeroDivisionError"),
        ("variables", "['ACCEL_BRIDGE_X']", "is not an accel_bridge.plugin.Variable"),
        ("commands", "1 / 0", "ZeroDivisionError"),
        ("commands", "[3]", "3 is not an accel_bridge.plugin.Command"),
        ("commands", "[Command('--x', 's', 'm:f')]", "cannot be the name of a command"),
        ("commands", "[Command('x', 's', 'm.f')]", "'m.f' is not module:function"),
    ],
)
def test_a_declaration_that_fails_leaves_the_others(
    site: Site, hook: str, returns: str, error: str
) -> None:
    source = (
        "from accel_bridge.plugin import Command, hookimpl\n"
        f"@hookimpl\ndef accel_bridge_{hook}(): return {returns}"
    )
    site.install("broken-pkg", {"broken_mod": source}, {"broken": "broken_mod"})
    other = DECLARES.format(variable="ACCEL_BRIDGE_TOY", command="toy")
    site.install("toy-pkg", {"toy_mod": other}, {"toy": "toy_mod"})
    plugins = load_plugins()
    failed = failure(plugins, "broken")
    assert failed.stage == f"accel_bridge_{hook}"
    assert error in failed.error
    assert "ACCEL_BRIDGE_TOY" in {variable.name for variable in plugins.variables()}
    groups = {found.item.name: found.item.group for found in plugins.commands().items}
    assert (groups["toy"], "env" in groups) == ("More", True)


@pytest.mark.parametrize(
    ("hook", "returns"),
    [
        ("backends()", "'cpu'"),
        ("backends()", "{'cpu': 1}"),
        ("variables()", "'X'"),
        ("commands()", "['x']"),
        ("patches(backend)", "'a patch'"),
        ("patches(backend)", "['a patch']"),
        ("argument_rules(backend)", "[None]"),
        ("delegations(backend)", "['mindspeed']"),
        ("versions()", "'1.0'"),
        ("versions()", "['megatron-core']"),
        ("versions()", "[('a', 'b', 'c')]"),
        ("versions()", "[('a', 1)]"),
    ],
)
def test_a_hook_that_returns_something_else_fails_alone(
    site: Site, hook: str, returns: str
) -> None:
    site.install(
        "odd", {"odd_mod": f"{HOOK}accel_bridge_{hook}: return {returns}"}, {"odd": "odd_mod"}
    )
    plugins = load_plugins(PluginChoice(excluded=("megatron", "mindspeed")))
    name = hook.partition("(")[0]
    if name in ("backends", "variables", "commands"):
        failed = failure(plugins, "odd")
    else:
        arguments = () if name == "versions" else (plugins.backends()[0].item,)
        collected: Any = getattr(plugins, name)(*arguments)
        (failed,) = collected.failed
    assert (failed.name, failed.stage) == ("odd", f"accel_bridge_{name}")
    assert "TypeError: " in failed.error


#: Files of a distribution's metadata that may be damaged: name -> content, None for no file.
DAMAGED: dict[str, dict[str, bytes | None]] = {
    "no METADATA": {"METADATA": None},
    "an empty METADATA": {"METADATA": b""},
    "METADATA in no encoding": {"METADATA": b"Name: \xff\xfe\n\n"},
    "no name": {"METADATA": b"Metadata-Version: 2.1\n"},
    "no equals sign": {"entry_points.txt": b"[accel_bridge]\nnonsense\n"},
    "no object": {"entry_points.txt": b"[accel_bridge]\ntoy = \n"},
    "no module": {"entry_points.txt": b"[accel_bridge]\ntoy = !!\n"},
    "no encoding": {"entry_points.txt": b"[accel_bridge]\n\xff = \xfe\n"},
    "a version that is none": {"METADATA": b"Name: torch\nVersion: banana\n"},
    "nothing": {"METADATA": None, "entry_points.txt": None},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_metadata_of_one_package_stops_nobody(site: Site, name: str) -> None:
    site.install("torn-pkg", {"torn_mod": backend_source("torn")}, {"torn": "torn_mod"})
    site.install("toy-pkg", {"toy_mod": backend_source("toy")}, {"toy": "toy_mod"})
    for file, content in DAMAGED[name].items():
        path = site.directory / "torn_pkg-1.0.dist-info" / file
        path.unlink() if content is None else path.write_bytes(content)
    plugins = load_plugins()
    assert names(plugins) >= {*BUILT_IN, "toy"}
    if "METADATA" in DAMAGED[name] and name != "nothing":
        assert "torn" in names(plugins)
    if "entry_points.txt" in DAMAGED[name] and name != "nothing":
        (failed,) = plugins.failed
        assert "torn-pkg" in failed.distribution
