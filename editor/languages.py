"""Which language a file is written in, told by its name."""

from __future__ import annotations

from pathlib import PurePosixPath

# Headers count as C++: its grammar reads nearly all C, while C's reads no classes.
_SUFFIXES = {
    "python": (".py", ".pyi", ".pyw"),
    "javascript": (".js", ".jsx", ".mjs", ".cjs"),
    "typescript": (".ts", ".mts", ".cts"),
    "tsx": (".tsx",),
    "go": (".go",),
    "rust": (".rs",),
    "java": (".java",),
    "c": (".c",),
    "cpp": (".cc", ".cpp", ".cxx", ".c++", ".h", ".hh", ".hpp", ".hxx", ".h++", ".ipp"),
    "csharp": (".cs", ".csx"),
    "ruby": (".rb", ".rake", ".gemspec", ".ru"),
    "php": (".php", ".phtml", ".php5", ".php7"),
    "json": (".json", ".jsonc", ".json5", ".geojson", ".webmanifest", ".ipynb"),
    "yaml": (".yaml", ".yml"),
    "toml": (".toml",),
    "html": (".html", ".htm", ".xhtml"),
    "css": (".css",),
    "sql": (".sql",),
    "bash": (".sh", ".bash", ".zsh", ".ksh", ".bats"),
    "markdown": (".md", ".markdown", ".mkd"),
}
_NAMES = {
    "bash": (".bashrc", ".bash_profile", ".bash_aliases", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".envrc"),
    "json": (".babelrc", ".eslintrc", ".prettierrc", ".swcrc", "composer.lock", "Pipfile.lock", "flake.lock"),
    "python": ("SConstruct", "SConscript", "wscript"),
    "ruby": ("Gemfile", "Rakefile", "Vagrantfile", "Podfile", "Fastfile", "Guardfile", "Brewfile", ".irbrc", ".pryrc"),
    "toml": ("Cargo.lock", "poetry.lock", "uv.lock", "Pipfile"),
    "yaml": (".clang-format", ".clang-tidy", ".clangd", "pubspec.lock", ".yamllint"),
}
_LANGUAGE_OF = {suffix: language for language, suffixes in _SUFFIXES.items() for suffix in suffixes}
_LANGUAGE_OF_NAME = {name.lower(): language for language, names in _NAMES.items() for name in names}


def language_of(path: str) -> str | None:
    """Return the language of a path ("python", "tsx", ...), or None where no grammar is at hand."""
    file = PurePosixPath(path.replace("\\", "/"))
    return _LANGUAGE_OF_NAME.get(file.name.lower()) or _LANGUAGE_OF.get(file.suffix.lower())
