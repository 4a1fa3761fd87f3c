"""The page that a person sees who opens the server in a browser: what it serves, how to get it, who is getting it.

Pure: values in, HTML out. Everything that comes from outside is escaped; there are no scripts.
"""

from collections.abc import Iterable
from html import escape
from typing import Any, NamedTuple
from urllib.parse import quote

from shuflr.server.catalog import Dataset

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1c2024; background: #fbfbf9; margin: 2rem auto; padding: 0 1.5rem;
  max-width: 72rem }
h1 { font-size: 1.4rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
p { color: #5b636b; margin: .25rem 0 }
table { border-collapse: collapse; width: 100% }
th { text-align: left; font-weight: 600; color: #5b636b; border-bottom: 2px solid #d9dcd6 }
th, td { padding: .35rem .8rem .35rem 0 }
td { border-bottom: 1px solid #e6e8e3; vertical-align: top }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
code { font: 13px/1.5 ui-monospace, monospace; background: #eef0eb; padding: .1rem .35rem; border-radius: 3px;
  user-select: all; overflow-wrap: anywhere }
.id { font-weight: 600 } .id p { font-weight: 400; margin: 0 }
"""


class Offer(NamedTuple):
    """A way for clients: a scheme, and a port or the path of a socket."""

    scheme: str
    where: str

    def url(self, host: str, dataset: str) -> str:
        """The URL of a dataset for a client that reaches the server as `host`."""
        if self.scheme == "shuflr+unix":
            return f"{self.scheme}://{quote(self.where)}/{dataset}"
        return f"{self.scheme}://{host}:{self.where}/{dataset}"


def size(count: "float | None") -> str:
    """Bytes for people.

    >>> size(1536), size(None)
    ('1.5 KiB', '')
    """
    if count is None:
        return ""
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def bare_host(host: str) -> str:
    """The host of a Host header, without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0] or "localhost"


def _row(*cells: "tuple[str, str]") -> str:
    """A table row of (class, HTML) cells."""
    return "<tr>" + "".join(f'<td class="{kind}">{text}</td>' if kind else f"<td>{text}</td>" for kind, text in cells)


def _table(heads: "tuple[str, ...]", rows: "list[str]") -> str:
    head = "".join(f'<th class="n">{name[1:]}</th>' if name[0] == "#" else f"<th>{name}</th>" for name in heads)
    return f"<table><thead><tr>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _count(value: "int | None") -> str:
    return "" if value is None else f"{value:,}"


def _some(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _dataset_row(dataset: Dataset, offers: "tuple[Offer, ...]", host: str) -> str:
    lines = "<br>".join(
        f"<code>Dataset({escape(repr(offer.url(host, dataset.id)), quote=False)})</code>" for offer in offers
    )
    return _row(
        ("id", f"{escape(dataset.id)}<p title='{dataset.label}'>{escape(dataset.format)}</p>"),
        ("n", size(dataset.size)), ("n", size(dataset.content_size)), ("n", _count(dataset.frames)),
        ("n", _count(dataset.records)), ("", lines),
    )  # fmt: skip


def _stream_row(stream: "dict[str, Any]") -> str:
    records = _count(stream["records"])
    if stream["total_records"]:
        records += f" of {_count(stream['total_records'])}"
    return _row(
        ("id", escape(stream["dataset"])), ("", escape(stream["transport"])), ("", escape(stream["peer"])),
        ("", escape(stream["shuffle"])), ("n", _count(stream["epoch"])), ("n", records),
        ("n", size(stream["bytes"])), ("n", f"{size(stream['bytes'] / stream['seconds'])}/s"),
        ("n", f"{stream['seconds']:.0f} s"), ("n", f"{100 * stream['blocked_on_client'] / stream['seconds']:.0f} %"),
    )  # fmt: skip


def status_page(
    datasets: Iterable[Dataset], processes: "list[dict[str, Any]]", offers: "tuple[Offer, ...]", host: str
) -> str:
    """The page. processes: as `status.described` tells them; host: as the client calls the server."""
    served = [_dataset_row(dataset, offers, bare_host(host)) for dataset in datasets]
    running = [_stream_row(stream) for process in processes for stream in process["streams"]]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        '<meta name="viewport" content="width=device-width"><title>shuflr server</title>'
        f"<style>{_STYLE}</style><h1>shuflr</h1>"
        f"<p>{_some(len(served), 'dataset')}, {_some(len(running), 'stream')},"
        f" {_some(len(processes), 'process', 'processes')}."
        ' Metrics are at <a href="/metrics">/metrics</a>.</p>'
        "<h2>Datasets</h2><p>After <code>from shuflr import Dataset</code>, and with seed, epochs, shuffle as you like:"
        "</p>"
        + _table(("dataset", "#on disk", "#decoded", "#frames", "#records", "to read it"), served)
        + "<h2>Streams</h2>"
        + (_table(("dataset", "over", "client", "shuffle", "#epoch", "#records", "#bytes", "#rate", "#for", "#waiting"),
                  running) if running else "<p>None runs now.</p>")
        + "</html>\n"
    )  # fmt: skip
