"""Languages by file name, their grammars, and the queries for their definitions.

In a query, `@name` is the name of a definition (without it, the text up to the body is the name, as in CSS), `@scope`
qualifies the name, and any other capture is the definition itself, named by its kind. The text of `@_is_x` must be `x`.
Two captures hold what precedes a definition: `@lead` (a decorator or attribute that is a sibling of it) and `@comment`.
`@wrapped` inside of `@wrap` is a definition with its decorators or `export`.

Definitions are functions, classes, keys of a configuration and headings. Fields, constants and variables are left out,
as they change with the code around them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True)
class Grammar:
    """One language: the module of its wheel, the function there that returns the grammar, the query for definitions."""

    module: str
    query: str
    function: str = "language"


_FUNCTIONS = "[(arrow_function) (function_expression) (generator_function)]"
_JAVASCRIPT = f"""
(comment) @comment
(class_declaration name: (_) @name) @class
(function_declaration name: (_) @name) @function
(generator_function_declaration name: (_) @name) @function
(method_definition name: (_) @name) @function
(variable_declarator name: (identifier) @name value: {_FUNCTIONS}) @function
(variable_declarator name: (identifier) @name value: (class)) @class
(assignment_expression left: (member_expression) @name right: {_FUNCTIONS}) @function
(pair key: (_) @name value: {_FUNCTIONS}) @function
(export_statement declaration: (_) @wrapped) @wrap
(export_statement declaration: (lexical_declaration . (variable_declarator) @wrapped)) @wrap
"""
_JAVASCRIPT_FIELD = f"(field_definition property: (_) @name value: {_FUNCTIONS}) @function"
_TYPESCRIPT = f"""
(class_body (decorator) @lead)
(public_field_definition name: (_) @name value: {_FUNCTIONS}) @function
(abstract_class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(type_alias_declaration name: (_) @name) @type
(enum_declaration name: (_) @name) @enum
(internal_module name: (_) @name) @namespace
(module name: (_) @name) @namespace
(function_signature name: (_) @name) @function
(method_signature name: (_) @name) @function
(abstract_method_signature name: (_) @name) @function
"""
_C = """
(comment) @comment
(function_definition declarator: (function_declarator declarator: (_) @name)) @function
(function_definition declarator: (_ declarator: (function_declarator declarator: (_) @name))) @function
(translation_unit (declaration declarator: (function_declarator declarator: (identifier) @name)) @function)
(preproc_ifdef (declaration declarator: (function_declarator declarator: (identifier) @name)) @function)
(struct_specifier name: (_) @name body: (_)) @struct
(union_specifier name: (_) @name body: (_)) @union
(enum_specifier name: (_) @name body: (_)) @enum
(type_definition declarator: (type_identifier) @name) @type
(preproc_function_def name: (_) @name) @macro
"""
_CPP = """
(function_definition (reference_declarator (function_declarator declarator: (_) @name))) @function
(declaration_list (declaration declarator: (function_declarator declarator: (identifier) @name)) @function)
(field_declaration declarator: (function_declarator declarator: (field_identifier) @name)) @function
(class_specifier name: (_) @name body: (_)) @class
(namespace_definition name: (_) @name) @namespace
(template_declaration [(function_definition) (class_specifier) (struct_specifier)] @wrapped) @wrap
"""
_PYTHON = """
(comment) @comment
(class_definition name: (_) @name) @class
(function_definition name: (_) @name) @function
(decorated_definition definition: (_) @wrapped) @wrap
"""
_GO = """
(comment) @comment
(function_declaration name: (_) @name) @function
(method_declaration
  receiver: (parameter_list (parameter_declaration type: (_) @scope)) name: (_) @name) @method
(type_spec name: (_) @name) @type
(type_alias name: (_) @name) @type
(method_elem name: (_) @name) @method
"""
_RUST = """
[(line_comment) (block_comment)] @comment
(attribute_item) @lead
(function_item name: (_) @name) @function
(function_signature_item name: (_) @name) @function
(struct_item name: (_) @name) @struct
(enum_item name: (_) @name) @enum
(union_item name: (_) @name) @union
(trait_item name: (_) @name) @trait
(mod_item name: (_) @name) @namespace
(type_item name: (_) @name) @type
(macro_definition name: (_) @name) @macro
(impl_item type: (_) @name) @impl
"""
_JAVA = """
[(line_comment) (block_comment)] @comment
(class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(record_declaration name: (_) @name) @class
(annotation_type_declaration name: (_) @name) @interface
(method_declaration name: (_) @name) @method
(constructor_declaration name: (_) @name) @method
(compact_constructor_declaration name: (_) @name) @method
"""
_CSHARP = """
(comment) @comment
(namespace_declaration name: (_) @name) @namespace
(class_declaration name: (_) @name) @class
(record_declaration name: (_) @name) @class
(struct_declaration name: (_) @name) @struct
(interface_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(delegate_declaration name: (_) @name) @type
(method_declaration name: (_) @name) @method
(constructor_declaration name: (_) @name) @method
(local_function_statement name: (_) @name) @function
(property_declaration name: (_) @name) @property
"""
_RUBY = """
(comment) @comment
(module name: (_) @name) @module
(class name: (_) @name) @class
(method name: (_) @name) @function
(singleton_method object: (_) @scope name: (_) @name) @function
"""
_PHP = """
(comment) @comment
(namespace_definition name: (_) @name) @namespace
(class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(trait_declaration name: (_) @name) @trait
(enum_declaration name: (_) @name) @enum
(function_definition name: (_) @name) @function
(method_declaration name: (_) @name) @method
"""
_YAML = """
(comment) @comment
(block_mapping_pair key: (_) @name) @key
(flow_pair key: (_) @name) @key
"""
_TOML = """
(comment) @comment
(table . [(bare_key) (quoted_key) (dotted_key)] @name) @table
(table_array_element . [(bare_key) (quoted_key) (dotted_key)] @name) @table
(pair . [(bare_key) (quoted_key) (dotted_key)] @name) @key
"""
_HTML = """
(comment) @comment
(element (start_tag (tag_name) @name @_is_html)) @element
(element (start_tag (tag_name) @name @_is_head)) @element
(element (start_tag (tag_name) @name @_is_body)) @element
(_ (start_tag (attribute (attribute_name) @_is_id (quoted_attribute_value (attribute_value) @name)))) @element
(_ (self_closing_tag (attribute (attribute_name) @_is_id (quoted_attribute_value (attribute_value) @name)))) @element
"""
_CSS = """
(comment) @comment
(rule_set (block)) @rule
(media_statement (block)) @rule
(supports_statement (block)) @rule
(keyframes_statement (keyframe_block_list)) @rule
(at_rule (block)) @rule
"""
_SQL = """
[(comment) (marginalia)] @comment
(create_table (object_reference) @name) @table
(create_view (object_reference) @name) @view
(create_materialized_view (object_reference) @name) @view
(create_function (object_reference) @name) @function
(create_trigger (object_reference) @name) @trigger
(create_type (object_reference) @name) @type
(create_sequence (object_reference) @name) @sequence
(create_schema (identifier) @name) @schema
(create_index column: (identifier) @name) @index
(column_definitions (column_definition name: (_) @name) @column)
"""
_BASH = "(comment) @comment (function_definition name: (_) @name) @function"
_MARKDOWN = """
(atx_heading heading_content: (_) @name) @heading
(setext_heading heading_content: (_) @name) @heading
"""

GRAMMARS = {
    "python": Grammar("tree_sitter_python", _PYTHON),
    "javascript": Grammar("tree_sitter_javascript", _JAVASCRIPT + _JAVASCRIPT_FIELD),
    "typescript": Grammar("tree_sitter_typescript", _JAVASCRIPT + _TYPESCRIPT, "language_typescript"),
    "tsx": Grammar("tree_sitter_typescript", _JAVASCRIPT + _TYPESCRIPT, "language_tsx"),
    "go": Grammar("tree_sitter_go", _GO),
    "rust": Grammar("tree_sitter_rust", _RUST),
    "java": Grammar("tree_sitter_java", _JAVA),
    "c": Grammar("tree_sitter_c", _C),
    "cpp": Grammar("tree_sitter_cpp", _C + _CPP),
    "csharp": Grammar("tree_sitter_c_sharp", _CSHARP),
    "ruby": Grammar("tree_sitter_ruby", _RUBY),
    "php": Grammar("tree_sitter_php", _PHP, "language_php"),
    "json": Grammar("tree_sitter_json", "(comment) @comment (pair key: (string) @name) @key"),
    "yaml": Grammar("tree_sitter_yaml", _YAML),
    "toml": Grammar("tree_sitter_toml", _TOML),
    "html": Grammar("tree_sitter_html", _HTML),
    "css": Grammar("tree_sitter_css", _CSS),
    "sql": Grammar("tree_sitter_sql", _SQL),
    "bash": Grammar("tree_sitter_bash", _BASH),
    "markdown": Grammar("tree_sitter_markdown", _MARKDOWN),
}

CLASSES = frozenset({"class", "interface", "struct", "enum", "trait", "impl", "module", "union"})
"""Kinds that make a function directly inside of them a method."""

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


def find_language(path: str) -> str | None:
    """Return the language of a path ("python", "tsx", ...), or None where no grammar is available."""
    file = PurePosixPath(path.replace("\\", "/"))
    return _LANGUAGE_OF_NAME.get(file.name.lower()) or _LANGUAGE_OF.get(file.suffix.lower())
