"""The text of a document is what its writer wrote, what is missing is said, and a hostile file is one sentence."""

from __future__ import annotations

import html as escaping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.core.errors import UserError
from kvlab.documents import document, docx, html, read
from kvlab.documents.docx import read_docx
from kvlab.documents.html import read_html
from kvlab.documents.read import read_document
from tests.documents import files

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

    from kvlab.documents.pdf import read_pdf

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

    from kvlab.documents.pdf import MOST_PAGES, read_pdf

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
