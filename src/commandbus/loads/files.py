"""Files as rows: JSON lines, JSON arrays, CSV, each also compressed; never all in memory."""

from __future__ import annotations

import codecs
import gzip
import importlib.util
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, cast

from commandbus.errors import SourceError
from commandbus.loads.reading import Opened, RawRow

#: A longer line, item or field is not read: what has no end must not end up in memory.
MAX_LINE_BYTES = 8 * 1024 * 1024
#: Bytes of an array that are read at a time.
CHUNK_BYTES = 64 * 1024
#: What may separate the columns of a CSV file whose header has to tell.
DELIMITERS = ",;\t|"

JSON_SUFFIXES = {".jsonl", ".ndjson", ".json"}
CSV_SUFFIXES = {".csv", ".tsv"}

#: What is read, whether it was compressed or not.
File = io.BufferedReader | gzip.GzipFile


def _own_csv() -> Any:
    # csv.field_size_limit is one number for the process, 128 KiB by default. A second instance
    # of the parser has its own: neither does the application's hold here, nor is it changed.
    spec = importlib.util.find_spec("_csv")
    if spec is None or spec.loader is None:
        raise ImportError("this Python has no CSV parser")
    parser = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(parser)
    parser.field_size_limit(MAX_LINE_BYTES)
    return parser


_csv = _own_csv()


def suffix_of(path: Path) -> str:
    """What a file holds by its name, without `.gz`."""
    name = Path(path.name.lower())
    return name.with_suffix("").suffix if name.suffix == ".gz" else name.suffix


def open_json(path: Path, stack: ExitStack) -> Opened:
    """Rows of JSON lines or of a JSON array, whichever it is."""
    return _read_json(_open(path, stack), path)


def open_csv(path: Path, stack: ExitStack, delimiter: str | None) -> Opened:
    """Records of a CSV file; without a delimiter its header tells which it is."""
    if delimiter is None and suffix_of(path) == ".tsv":
        delimiter = "\t"

    def records(file: File) -> Iterator[RawRow]:
        return _records(file, delimiter)

    file = _open(path, stack)
    return Opened(_explained(records(file), "line"), "line", _count(path, file, records))


def read_json(file: io.BufferedIOBase, stack: ExitStack) -> Opened:
    """Rows of a file that is open already, and stays so, as those of `open_json`."""
    if isinstance(file, File):
        return _read_json(_unpacked(file))
    buffered = io.BufferedReader(cast("io.RawIOBase", file))
    stack.callback(buffered.detach)
    return _read_json(_unpacked(cast("File", buffered)))


def _read_json(file: File, path: Path | None = None) -> Opened:
    try:
        first, lines = _first_byte(file)
    except (OSError, EOFError, zlib.error) as error:
        raise _broken(error, "the beginning") from error
    if first == b"[":
        return Opened(_explained(iter(_Array(file, lines + 1)), "item"), "item")
    total = None if path is None else _count(path, file, _filled_lines)
    return Opened(_explained(_filled_lines(file, lines), "line"), "line", total)


def _open(path: Path, stack: ExitStack) -> File:
    try:
        return _unpacked(stack.enter_context(path.open("rb")))
    except OSError as error:
        raise SourceError(f"cannot read {str(path)!r}: {error.strerror or error}") from error


def _unpacked(file: File) -> File:
    # By its first byte, whatever it is called: no text begins with that one.
    is_packed = not isinstance(file, gzip.GzipFile) and file.peek(1)[:1] == b"\x1f"
    return gzip.GzipFile(fileobj=file) if is_packed else file


def _count(path: Path, file: File, rows: Callable[[File], Iterator[RawRow]]) -> int | None:
    """How many rows there are, so that progress can say how much is left; None for a pipe."""
    if not path.is_file() or isinstance(file, gzip.GzipFile):
        return None  # to unpack it twice would take longer than it is worth
    try:
        with path.open("rb") as again:
            return sum(1 for _ in rows(again))
    except (SourceError, OSError):
        return None  # the load gets as far as the error, and says where it is


def _explained(rows: Iterator[RawRow], unit: str) -> Iterator[RawRow]:
    """Rows, or what is wrong with the file below them."""
    place = 0
    try:
        for row in rows:
            place = row[0]
            yield row
    except (OSError, EOFError, zlib.error) as error:
        raise _broken(error, f"{unit} {place:,}", place) from error


def _broken(error: Exception, after: str, place: int | None = None) -> SourceError:
    if isinstance(error, EOFError):
        reason = "the gzip file is cut off; get it again"
    elif isinstance(error, gzip.BadGzipFile | zlib.error):
        reason = f"the gzip file is damaged ({error}); get it again"
    else:
        reason = str(getattr(error, "strerror", None) or error)
    return SourceError(f"cannot read on after {after}: {reason}", place)


# -- lines


def _first_byte(file: File) -> tuple[bytes, int]:
    """Pass over what is blank: the first byte after it, and how many lines it took."""
    lines, byte = 0, file.peek(1)[:1]
    if byte == b"\xef" and file.read(3) != codecs.BOM_UTF8:
        raise _not_utf8(1, 1, "invalid byte order mark", b"")
    while (byte := file.peek(1)[:1]) and byte in b" \t\r\n":
        lines += file.read(1) == b"\n"
    return byte, lines


def _lines(file: File, before: int = 0) -> Iterator[tuple[int, str]]:
    number = before
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise SourceError(
                f"line {number:,}: longer than {MAX_LINE_BYTES:,} bytes; a row is one line", number
            )
        if number == 1 and b"\0" in line[:2]:
            raise _not_utf8(1, 1, "a NUL byte", codecs.BOM_UTF16)
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(number, error.start + 1, error.reason, line) from error


def _not_utf8(line: int, byte: int, reason: str, text: bytes) -> SourceError:
    is_wide = line == 1 and text[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}
    name = "UTF-16" if is_wide else "LATIN1"
    return SourceError(
        f"line {line:,}: not UTF-8 ({reason}, byte {byte:,} of the line); "
        f"{'it is' if is_wide else 'if it is'} {name}, convert it: `iconv -f {name} -t UTF-8`",
        line,
    )


def _filled_lines(file: File, before: int = 0) -> Iterator[RawRow]:
    return ((number, line) for number, line in _lines(file, before) if not line.isspace())


# -- CSV


def _records(file: File, given: str | None) -> Iterator[RawRow]:
    """Records of a CSV file with a header, each with the line where it begins."""
    lines = (line for _, line in _lines(file))
    first = next(lines, None)
    if first is None:
        return
    delimiter = _delimiter_of(first, given)
    reader = _csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    try:
        header: list[str] = next(reader, [])
        if len(set(header)) != len(header) or "" in header or not header:
            raise SourceError("line 1: a column has no name, or the name of another", 1)
        begin = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                reason = f"{len(fields)} fields where the header has {len(header)}"
                raise SourceError(f"line {begin:,}: {reason} (separated by {delimiter!r})", begin)
            if fields:
                yield begin, dict(zip(header, fields, strict=True))
            begin = reader.line_num + 1
    except _csv.Error as error:
        line = reader.line_num
        hint = "; is there a quote that is not closed?" if "limit" in str(error) else ""
        raise SourceError(f"line {line:,}: not CSV: {error}{hint}", line) from error


def _delimiter_of(header: str, given: str | None) -> str:
    """What separates the columns: what was given, or the only one that splits the header."""

    def columns(delimiter: str) -> int:
        try:
            return len(next(_csv.reader([header], delimiter=delimiter), []))
        except _csv.Error:
            return 1  # read again, that says what is wrong

    splitting = [each for each in DELIMITERS if columns(each) > 1]
    if given is None and len(splitting) > 1:
        found = " and ".join(repr(each) for each in splitting)
        raise SourceError(
            f"line 1: {found} could separate the columns; say which (delimiter, --delimiter), or "
            "put names that contain one in quotes",
            1,
        )
    if given is not None and splitting and columns(given) == 1:
        raise SourceError(
            f"line 1: with {given!r} the header is a single column, with {splitting[0]!r} it has "
            f"{columns(splitting[0])}; give that one, or put the name in quotes if it is one",
            1,
        )
    return given or (splitting or [","])[0]


# -- JSON arrays

_SPACE = re.compile(r"[ \t\r\n]*")
_scan = json.JSONDecoder().raw_decode


class _Array:
    """The items of a JSON array, as text, while it is read."""

    def __init__(self, file: File, line: int) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text, self._at, self._is_all = "", 0, False
        # Where in the file the text begins.
        self._line, self._column = line, 1
        self._item = 1

    def __iter__(self) -> Iterator[RawRow]:
        self._next()
        self._at += 1
        if self._next() == "]":
            self._at += 1
        else:
            yield from self._items()
        if self._next():
            raise self._wrong("something follows the end of the array")

    def _items(self) -> Iterator[RawRow]:
        while True:
            if self._next() in {"]", ""}:
                has_ended = self._next() == "]"
                raise self._wrong("a comma before the end" if has_ended else "the array has no end")
            yield self._item, self._value()
            after = self._next()
            if after not in {",", "]"}:
                raise self._wrong("a comma is missing" if after else "the array has no end")
            self._at += 1
            if after == "]":
                return
            self._item += 1

    def _next(self) -> str:
        """The next character that is not blank; empty at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                return ""

    def _value(self) -> str:
        while True:
            try:
                _, end = _scan(self._text, self._at)
            except RecursionError:
                raise self._wrong("nested too deeply to be decoded") from None
            except json.JSONDecodeError as error:
                # Perhaps only the rest of it is missing.
                behind = error.pos - self._at
                if len(self._text) - self._at > MAX_LINE_BYTES:
                    raise self._wrong(f"an item longer than {MAX_LINE_BYTES:,} bytes") from None
                if self._read():
                    continue
                self._at += behind
                raise self._wrong(error.msg) from None
            except ValueError as error:
                raise self._wrong(str(error)) from None
            if end == len(self._text) and self._read():
                continue  # a number may go on
            text, self._at = self._text[self._at : end], end
            return text

    def _read(self) -> bool:
        """Drop what is behind, read on; False at the end of the file."""
        if self._is_all:
            return False
        rest = self._text[self._at :]
        self._line, self._column = self._place()
        # Twice as much each time: an item that is not complete is decoded from its beginning again.
        many = len(rest) >= CHUNK_BYTES
        data = self._file.read(len(rest)) if many else self._file.read1(CHUNK_BYTES)
        self._is_all = not data
        self._text, self._at = rest, 0
        try:
            self._text += self._decode(data, final=self._is_all)
        except UnicodeDecodeError as error:
            raise _not_utf8(self._line, self._column, error.reason, b"") from error
        return not self._is_all

    def _place(self) -> tuple[int, int]:
        newline = self._text.rfind("\n", 0, self._at)
        if newline < 0:
            return self._line, self._column + self._at
        return self._line + self._text.count("\n", 0, self._at), self._at - newline

    def _wrong(self, reason: str) -> SourceError:
        line, column = self._place()
        where = f"item {self._item:,} (line {line:,}, column {column:,})"
        return SourceError(f"{where}: not JSON: {reason}", self._item)
