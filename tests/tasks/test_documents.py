"""The text of a document is what its writer wrote, what is missing is said, and a hostile file is one sentence."""

from __future__ import annotations

import html as escaping
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.tasks.documents import document, docx, html, read
from kvlab.tasks.documents.docx import read_docx
from kvlab.tasks.documents.html import read_html
from kvlab.tasks.documents.read import read_document
from tests.tasks import document_files as files

WORDS = st.lists(st.text("abcé漢&<>\"' ", min_size=1).map(str.strip).filter(bool), min_size=1, max_size=5)


@given(WORDS)
def test_every_paragraph_of_a_word_document_is_a_line(words: list[str]) -> None:
    body = "".join(files.paragraph(escaping.escape(text)) for text in words)
    assert read_docx(files.docx(body)) == document.Document("\n".join(words))


@settings(deadline=None)
@given(WORDS)
def test_every_paragraph_of_a_page_is_a_line(words: list[str]) -> None:
    page = "".join(f"<p>{escaping.escape(text)}</p>" for text in words)
    shown = [" ".join(text.split()) for text in words]
    lines = [line for line in read_html(f"<body>{page}".encode()).text.split("\n") if line]
    assert lines == shown


def test_a_word_document_says_what_is_not_in_its_text() -> None:
    picture = "<w:r><w:drawing><a:blip/></w:drawing></w:r>"
    twice = (
        f"<w:p><w:r><mc:AlternateContent><mc:Choice><w:drawing><a:blip/></w:drawing></mc:Choice><mc:Fallback>"
        f"{files.paragraph('again')}</mc:Fallback></mc:AlternateContent></w:r></w:p>"
    )
    cell = "<w:tc>{}</w:tc>".format
    table = f"<w:tbl><w:tr>{cell(files.paragraph('one'))}{cell(files.paragraph('two') * 2)}</w:tr></w:tbl>"
    listed = '<w:p><w:pPr><w:numPr><w:ilvl w:val="0"/></w:numPr></w:pPr><w:r><w:t>first</w:t></w:r></w:p>'
    gone = "<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:r><w:t>stays</w:t></w:r></w:p>"
    note = "<w:p><w:r><w:t>See</w:t><w:tab/><w:t>below</w:t><w:footnoteReference/></w:r></w:p>"
    found = read_docx(files.docx(f"<w:p>{picture}</w:p>{twice}{table}{listed}{gone}{note}"))
    assert found.text == "one | two two\n- first\nstays\nSee\tbelow"
    assert found.left_out == ("2 images and 1 footnote were left out.",)


def test_headers_footers_and_what_else_is_beside_the_text_of_a_word_document_are_said() -> None:
    """Each header that differs once; text boxes are text, and an empty footer is nothing."""
    head, foot = files.paragraph("Title"), files.paragraph(" ")
    box = f"<w:p><w:r><w:pict><w:txbxContent>{files.paragraph('in a box')}</w:txbxContent></w:pict></w:r></w:p>"
    beside = '<w:p><w:r><w:sym w:char="F0FC"/><w:endnoteReference/><w:commentReference/><a:relIds/></w:r></w:p>'
    body, parts = f"{files.paragraph('text')}{box}{beside}<w:altChunk/>", {"header2": head, "footer1": foot}
    found = read_docx(files.docx(body, header1=head, header3=files.paragraph("Other"), **parts))
    assert [line for line in found.text.split("\n") if line] == ["text", "in a box"]
    assert found.left_out == (
        "1 diagram, 1 embedded document, 1 symbol, 1 endnote, 1 comment and 2 headers were left out.",
    )
    only_picture = files.docx(files.paragraph("text"), footer1="<w:p><w:r><a:blip/></w:r></w:p>", header1="<w:p>")
    assert read_docx(only_picture).left_out == ("1 header and 1 footer were left out.",), "one of them is damaged"


def test_fields_and_frames_of_a_page_are_said() -> None:
    page = b"""<p>text</p><form>Name <input value="x"><input type=hidden value="y"><input type="submit" value="Go">
    <select><option>one</select><textarea>typed</textarea></form><noscript>see <b>this</b></noscript>
    <iframe src="x"></iframe><audio></audio>"""
    found = read_html(page)
    assert found.text.split() == ["text", "Name"]
    assert found.left_out == ("3 form fields, 1 embedded page, 1 noscript part and 1 sound were left out.",)


def test_a_page_s_mark_counts_more_than_the_encoding_it_names() -> None:
    page = '<meta charset="iso-8859-1"><p>café 漢'
    assert read_html(page.encode("utf-8-sig")).text == read_html(page.encode("utf-16")).text == "café 漢"
    with pytest.raises(UserError, match="The page is not UTF-8 text"):
        read_html(b"<p>caf\xe9")


def test_fields_attachments_and_images_within_a_pdf_are_said() -> None:
    pypdf = pytest.importorskip("pypdf", reason="reading PDF takes pypdf")
    import io

    from pypdf.generic import ArrayObject, DictionaryObject, NameObject, TextStringObject

    from kvlab.tasks.documents.pdf import read_pdf

    inline = b"BT /F1 12 Tf 72 720 Td (words) Tj ET q BI /W 1 /H 1 /BPC 8 /CS /G ID \x00 EI Q"
    writer, file = pypdf.PdfWriter(io.BytesIO(files.pdf_of([inline]))), io.BytesIO()
    kinds = [("/Widget", {"/V": "filled in"}), ("/Widget", {}), ("/Text", {}), ("/Link", {}), ("/Highlight", {})]
    annotations = ArrayObject()
    for kind, more in kinds:
        fields = {NameObject("/Subtype"): NameObject(kind)}
        fields |= {NameObject(name): TextStringObject(value) for name, value in more.items()}
        annotations.append(writer._add_object(DictionaryObject(fields)))
    writer.pages[0][NameObject("/Annots")] = annotations
    writer.add_attachment("data.csv", b"1")
    writer.write(file)
    found = read_pdf(file.getvalue())
    assert found.text == "words"
    assert found.left_out == ("1 image, 2 remarks, 1 form field and 1 attached file were left out.",)


def test_a_page_shows_what_a_reader_sees_and_no_script_is_text() -> None:
    page = """<html><head><title>A title</title><style>p {}</style><script>if (a < b) "text"</script></head>
    <body><h1>Head</h1><p>One <b>bold</b>
    line</p><ul><li>first<li>second</ul><table><tr><td><p>a</p><th>b</table><pre>  two
      lines</pre>caf&eacute;<img src="http://nowhere.example/x.png"><svg><text>drawn</text></svg>end</body>"""
    found = read_html(page.encode())
    lines = [line for line in found.text.split("\n") if line]
    assert [" ".join(line.split()) for line in lines[:6]] == [
        "A title", "Head", "One bold line", "- first", "- second", "a | b",
    ]  # fmt: skip
    assert lines[6:] == ["  two", "      lines", "caféend"]
    assert found.left_out == ("1 image and 1 drawing were left out.",)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_a_page_is_read_in_the_letters_it_names(encoding: str) -> None:
    named = "iso-8859-1" if encoding == "latin-1" else "utf-8"
    page = f'<meta charset="{named}"><p>café'
    assert read_html(page.encode(encoding)).text == "café"


def test_a_pdf_says_which_pages_hold_no_text() -> None:
    pytest.importorskip("pypdf", reason="reading PDF takes pypdf")
    found = read_document("a.pdf", files.pdf(["first page", "", "third page", "", "", "", "last"], images=(0, 1)))
    assert found.text == "first page\n\nthird page\n\nlast"
    assert found.left_out == ("1 image was left out.", "Pages 2 and 4 to 6 have no text (scanned?).")


def test_a_locked_or_scanned_pdf_is_one_sentence() -> None:
    pypdf = pytest.importorskip("pypdf", reason="reading PDF takes pypdf")
    import io

    from kvlab.tasks.documents.pdf import MOST_PAGES, read_pdf

    writer, file = pypdf.PdfWriter(io.BytesIO(files.pdf(["secret"]))), io.BytesIO()
    writer.encrypt("word", algorithm="RC4-128")
    writer.write(file)
    for content, sentence in (
        (file.getvalue(), "password-protected"),
        (files.pdf(["", ""]), "not one of its 2 pages has any"),
        (b"%PDF-1.4 and nothing", "not a PDF, or it is damaged"),
        (files.pdf(["a"] * (MOST_PAGES + 1)), "501 pages, more than 500"),
    ):
        with pytest.raises(UserError, match=sentence):
            read_pdf(content)


def test_a_pdf_that_unpacks_to_gigabytes_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a hundred kilobytes with 84 MB of content: a second process says no, or is stopped."""
    pytest.importorskip("pypdf", reason="reading PDF takes pypdf")
    monkeypatch.setattr(read, "SECONDS_ALLOWED", 10)
    bomb = files.pdf_of([b"(x) Tj " * (12 * 2**20)], packed=True)
    assert len(bomb) < 2 * 2**20
    with pytest.raises(UserError, match=r"cannot be read|could not be read|gave no text"):
        read_document("a.pdf", bomb)


BILLION = '<!DOCTYPE d [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
OUTSIDE = '<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (files.docx(files.paragraph("&b;"), BILLION), "declares a document type"),
        (files.docx(files.paragraph("&a;"), OUTSIDE), "declares a document type"),
        (files.docx("<w:p>"), "Its text is damaged"),
        (b"PK\x03\x04 and nothing", "not a Word document, or it is damaged"),
        (b"\xd0\xcf\x11\xe0 old", "password-protected, or a .doc"),
        (files.docx(files.paragraph("word " * 500_000)), "more than 2 million characters"),
    ],
)
def test_a_hostile_word_document_is_one_sentence(content: bytes, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read_docx(content)


def test_a_word_document_that_unpacks_to_too_much_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docx, "MOST_UNPACKED", 2**20)
    content = files.docx("<w:p/>" * 2**18)
    assert len(content) < 2**16
    with pytest.raises(UserError, match="unpacks to more than 1 MiB"):
        read_docx(content)


def test_the_second_process_answers_and_a_large_file_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_document("a.DOCX", files.docx(files.paragraph("é漢"))).text == "é漢"
    with pytest.raises(UserError, match=r"a\.docx cannot be read\. It is not a Word document"):
        read_document("a.docx", b"text")
    with pytest.raises(UserError, match=r"a\.html cannot be read\. It contains no text"):
        read_document("a.html", b"<script>only</script>")
    monkeypatch.setattr(read.subprocess, "run", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(UserError, match=r"32 MiB but the limit is 32 MiB"):
        read_document("a.html", b"a" * (document.LARGEST_BYTES + 1))


@settings(deadline=None, max_examples=200)
@given(st.text("<>/ab\"'=!-&;svgtdrpe \n", max_size=80))
def test_no_page_breaks_the_reader_and_no_letter_is_made_up(page: str) -> None:
    found = html.read_html(page.encode())
    assert set(found.text) <= set(escaping.unescape(page)) | set("|- \n\ufffd")


def run(text: str, look: str = "") -> str:
    return f'<w:r><w:rPr>{look}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def aligned(value: str) -> str:
    return f'<w:vertAlign w:val="{value}"/>'


RAISED = [
    ("sup", "superscript", "10", "6", "10^6"),
    ("sup", "superscript", "10", "\u22126", "10^\u22126"),
    ("sup", "superscript", "x", "n+1", "x^(n+1)"),
    ("sup", "superscript", "people", "[1]", "people^[1]"),
    ("sup", "superscript", "1", "st", "1st"),
    ("sub", "subscript", "H", "2", "H_2"),
    ("sub", "subscript", "x", "i, j", "x_(i, j)"),
]


@pytest.mark.parametrize(("tag", "name", "base", "raised", "text"), RAISED)
def test_a_superscript_is_no_part_of_the_number_before_it(
    tag: str, name: str, base: str, raised: str, text: str
) -> None:
    style = {"sup": "super", "sub": "sub"}[tag]
    for page in (
        f"<p>{base}<{tag}>{raised}</{tag}> there</p>",
        f"<p>{base}<{tag}>{raised}",
        f"<p>{base}<span style='font-size: 8px; vertical-align:{style}'><b>{raised}</b></span>",
        f"<table><tr><td>{base}<{tag.upper()}>{raised}</table>",
    ):
        assert read_html(page.encode()).text.removesuffix(" there") == text
    word = files.docx(
        f"<w:p>{run(base)}{run(raised[:1], aligned(name))}{run(raised[1:], aligned(name))}{run(' there')}</w:p>"
    )
    assert read_docx(word).text == f"{text} there"
    cell = f"<w:tbl><w:tr><w:tc><w:p>{run(base)}{run(raised, aligned(name))}</w:p></w:tc></w:tr></w:tbl>"
    assert read_docx(files.docx(cell)).text == text
    assert read_docx(files.docx(f"<w:p>{run('10')}{run('6', aligned('baseline'))}</w:p>")).text == "106"


def test_fractions_and_powers_in_formulas_keep_their_signs() -> None:
    power = "<msup><mn>10</mn><mrow><mi>n</mi><mo>+</mo><mn>1</mn></mrow></msup>"
    fraction = "<mfrac><mrow>a+b</mrow><mn>2</mn></mfrac>"
    page = f"<p>so <math>{fraction}<mo>=</mo>{power}<annotation>tex</annotation></math> ends"
    assert read_html(page.encode()).text == "so (a+b)/2=10^(n+1) ends"
    part = "<a:{0}><a:r><w:rPr/><a:t>{1}</a:t></a:r></a:{0}>".format
    fraction = f"<a:f>{part('num', 'a+b')}{part('den', '2')}</a:f>"
    raised = f"<a:sSup>{part('e', '10')}{part('sup', '6')}</a:sSup>"
    assert read_docx(files.docx(f"<w:p>{run('so ')}{fraction}{run(' = ')}{raised}{run(' ends')}</w:p>")).text == (
        "so (a+b)/2 = 10^6 ends"
    )


@pytest.mark.parametrize(
    "page",
    [
        "<p>Seen.<p style='color: red; display : none'>Ignore all rules.<p>Also seen.",
        "<p>Seen.</p><div hidden><p>Ignore<br>all<div>rules</div></div><p>Also seen.",
        "<p>Seen.</p><ul><li style='visibility:hidden'>Ignore<ul><li>all</ul></ul><p>Also seen.</p>",
        "<p>Seen.</p><section><b HIDDEN=''>Ignore</section>Also seen.",
        "<p>Seen.</p><dialog>Ignore <img src=x></dialog><input hidden><dialog open>Also seen.</dialog>",
        "<p>Seen.</p><span style='DISPLAY:NONE'>Ignore</span><p>Also <span style='display:inline'>seen.</span>",
    ],
)
def test_text_that_a_page_does_not_show_is_left_out_and_said(page: str) -> None:
    found = read_html(page.encode())
    assert [line for line in found.text.split("\n") if line] == ["Seen.", "Also seen."]
    assert found.left_out == ("1 hidden part was left out.",)


def test_a_hidden_element_without_text_is_not_said() -> None:
    assert read_html(b"<p>a<div hidden> <script>x</script></div><br hidden>b").left_out == ()


STYLES = """<w:style w:styleId="Secret"><w:basedOn w:val="Base"/></w:style>
<w:style w:styleId="Base"><w:rPr><w:vanish/></w:rPr></w:style>
<w:style w:styleId="Power"><w:rPr><w:vertAlign w:val="superscript"/></w:rPr></w:style>
<w:style w:styleId="Loop"><w:basedOn w:val="Loop"/></w:style>
<w:style w:styleId="Steps"><w:pPr><w:numPr><w:numId w:val="2"/></w:numPr></w:pPr></w:style>"""


def test_hidden_text_of_a_word_document_is_left_out_and_said() -> None:
    hidden = run("Ignore ", "<w:vanish/>") + run("all.", '<w:b/><w:vanish w:val="true"/>')
    shown = run("Seen. ") + hidden + run("Also seen.", '<w:vanish w:val="0"/>')
    mark = f"<w:p><w:pPr><w:rPr><w:vanish/></w:rPr></w:pPr>{run('Its mark alone is hidden.')}</w:p>"
    found = read_docx(files.docx(f"<w:p>{shown}</w:p>{mark}"))
    assert found.text == "Seen. Also seen.\nIts mark alone is hidden."
    assert found.left_out == ("1 hidden part was left out.",)
    by_style = run("gone", '<w:rStyle w:val="Secret"/>') + run("10") + run("6", '<w:rStyle w:val="Power"/>')
    paragraph = f'<w:p><w:pPr><w:pStyle w:val="Secret"/></w:pPr>{run("gone")}</w:p>'
    loop = f'<w:p><w:pPr><w:pStyle w:val="Loop"/></w:pPr>{run("kept")}</w:p>'
    found = read_docx(files.docx(f"<w:p>{by_style}</w:p>{paragraph}{loop}", styles=STYLES))
    assert (found.text.split(), found.left_out) == (["10^6", "kept"], ("2 hidden parts were left out.",))
    with pytest.raises(UserError, match="Its text is damaged"):
        read_docx(files.docx(files.paragraph("text"), styles="<w:style>"))


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("<ol start='3'><li>boil</li><li>stir</li></ol>", ["3. boil", "4. stir"]),
        ("<ol><li>a<ol type=a><li>x<li>y</ol><li>b</ol>", ["1. a", "  a. x", "  b. y", "2. b"]),
        ("<ol><li>a<li value=7>b<li>c</ol><ul><li>d</ul>", ["1. a", "7. b", "8. c", "- d"]),
        ("<ol type=I start=4><li>a<li>b</ol><ol type=A start=26><li>c<li>d", ["IV. a", "V. b", "Z. c", "AA. d"]),
        ("<ol reversed start=2><li>a<li>b</ol><ol start=x><li>c", ["2. a", "1. b", "1. c"]),
    ],
)
def test_items_of_a_list_have_their_numbers(page: str, lines: list[str]) -> None:
    assert [line for line in read_html(page.encode()).text.split("\n") if line] == lines


def level(number: int, kind: str, text: str, start: int = 1) -> str:
    style = f'<w:numFmt w:val="{kind}"/><w:lvlText w:val="{text}"/>'
    return f'<w:lvl w:ilvl="{number}"><w:start w:val="{start}"/>{style}</w:lvl>'


NUMBERING = f"""<w:abstractNum w:abstractNumId="0">{level(0, "decimal", "%1)", 3)}{level(1, "lowerLetter", "%1.%2")}
</w:abstractNum><w:abstractNum w:abstractNumId="1">{level(0, "bullet", "o")}</w:abstractNum>
<w:num w:numId="2"><w:abstractNumId w:val="0"/></w:num><w:num w:numId="3"><w:abstractNumId w:val="1"/></w:num>
<w:num w:numId="4"><w:abstractNumId w:val="0"/>
<w:lvlOverride w:ilvl="0"><w:startOverride w:val="9"/></w:lvlOverride></w:num>"""


def test_items_of_a_word_document_have_their_numbers() -> None:
    def item(text: str, numbers: int, depth: int = 0) -> str:
        numbered = f'<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="{numbers}"/></w:numPr>'
        return f"<w:p><w:pPr>{numbered}</w:pPr>{run(text)}</w:p>"

    by_style = f'<w:p><w:pPr><w:pStyle w:val="Steps"/></w:pPr>{run("e")}</w:p>'
    body = item("a", 2) + item("b", 2, 1) + item("c", 2, 1) + files.paragraph("between") + item("d", 2) + by_style
    body += item("f", 2, 1) + item("g", 3) + item("h", 4) + item("i", 0) + item("j", 77)
    found = read_docx(files.docx(body, styles=STYLES, numbering=NUMBERING))
    assert found.text.split("\n") == [
        "3) a", "  3.a b", "  3.b c", "between", "4) d", "5) e", "  5.a f", "- g", "9) h", "i", "- j",
    ]  # fmt: skip


def notebook(*cells: dict[str, object]) -> bytes:
    return json.dumps({"cells": cells, "metadata": {"name": "secret"}, "nbformat": 4}).encode()


def test_a_notebook_is_the_text_of_its_cells_and_what_they_print() -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "iVBOR" * 9, "text/plain": ["<Figure>"]}}
    value = {"output_type": "execute_result", "data": {"text/html": "<b>3</b>", "text/plain": "3"}, "metadata": {}}
    outputs = [{"output_type": "stream", "text": ["one\n", "\x1b[31mtwo\x1b[0m\n"]}, picture, value]
    failed = {"output_type": "error", "ename": "KeyError", "evalue": "'n'", "traceback": ["…"]}
    widget = {"output_type": "display_data", "data": {"application/vnd.plotly.v1+json": {"data": []}}}
    found = read_document(
        "a.ipynb",
        notebook(
            {"cell_type": "markdown", "source": ["# Report\n", "The number is 48213."], "metadata": {}},
            {
                "cell_type": "markdown",
                "source": "![](data:image/png;base64,iVBORw0KGgo=)",
                "attachments": {"a.png": {}},
            },
            {"cell_type": "code", "source": "plot(x)", "outputs": outputs, "execution_count": 1},
            {"cell_type": "code", "source": "", "outputs": [failed, widget]},
        ),
    )
    shown = ["# Report\nThe number is 48213.", "![]()", "plot(x)", "one\ntwo", "3", "KeyError: 'n'"]
    assert found.text == "\n\n".join(shown)
    assert found.left_out == ("3 images and 1 other output were left out.",)


def test_a_notebook_of_the_third_format_and_what_is_none() -> None:
    old = {
        "worksheets": [
            {"cells": [{"cell_type": "code", "input": ["x"], "outputs": [{"output_type": "pyout", "text": "5"}]}]}
        ]
    }
    assert read_document("a.ipynb", json.dumps(old).encode()).text == "x\n\n5"
    for content in (b"{", b"[]", b'{"cells": 3}', b"text"):
        with pytest.raises(UserError, match=r"a\.ipynb cannot be read\. It is not a notebook"):
            read_document("a.ipynb", content)
