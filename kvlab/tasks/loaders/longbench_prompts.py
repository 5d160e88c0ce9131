"""LongBench's protocol: prompt, answer length and metric of each task.

Source: LongBench (Bai et al., ACL 2024; MIT licence), its dataset2prompt and dataset2maxlen tables. The wording is
unchanged (including "asconcisely"), since scores are comparable only with equal prompts. Three Chinese tasks whose
metric needs a word segmenter (multifieldqa_zh, dureader, vcsum) are left out.
"""

# ruff: noqa: E501 (a prompt is one string, as published)

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LongBenchTask:
    """Prompt template, answer length and metric of one LongBench task."""

    prompt: str
    max_new_tokens: int
    metric: str


_PASSAGES_PROMPT = "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the question based on the given passages. Only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:"

# Only the first line of these answers counts.
FIRST_LINE_TASKS = ("trec", "triviaqa", "samsum", "lsht")
# These prompts are examples or code to be continued: LongBench uses no chat template for them.
UNWRAPPED_TASKS = (*FIRST_LINE_TASKS, "lcc", "repobench-p")

LONGBENCH_TASKS: dict[str, LongBenchTask] = {
    "narrativeqa": LongBenchTask(
        "You are given a story, which can be either a novel or a movie script, and a question. Answer the question asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\nStory: {context}\n\nNow, answer the question based on the story asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
        128,
        "f1",
    ),
    "qasper": LongBenchTask(
        'You are given a scientific article and a question. Answer the question as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based on the information in the article, write "unanswerable". If the question is a yes/no question, answer "yes", "no", or "unanswerable". Do not provide any explanation.\n\nArticle: {context}\n\n Answer the question based on the above article as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based on the information in the article, write "unanswerable". If the question is a yes/no question, answer "yes", "no", or "unanswerable". Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:',
        128,
        "f1",
    ),
    "multifieldqa_en": LongBenchTask(
        "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following question based on the above text, only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:",
        64,
        "f1",
    ),
    "hotpotqa": LongBenchTask(_PASSAGES_PROMPT, 32, "f1"),
    "2wikimqa": LongBenchTask(_PASSAGES_PROMPT, 32, "f1"),
    "musique": LongBenchTask(_PASSAGES_PROMPT, 32, "f1"),
    "gov_report": LongBenchTask(
        "You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
        512,
        "rouge_l",
    ),
    "qmsum": LongBenchTask(
        "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based on the above meeting transcript in one or more sentences.\n\nQuery: {input}\nAnswer:",
        512,
        "rouge_l",
    ),
    "multi_news": LongBenchTask(
        "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:",
        512,
        "rouge_l",
    ),
    "trec": LongBenchTask(
        "Please determine the type of the question below. Here are some examples of questions.\n\n{context}\n{input}",
        64,
        "classification",
    ),
    "triviaqa": LongBenchTask(
        "Answer the question based on the given passage. Only give me the answer and do not output any other words. The following are some examples.\n\n{context}\n\n{input}",
        32,
        "f1",
    ),
    "samsum": LongBenchTask(
        "Summarize the dialogue into a few short sentences. The following are some examples.\n\n{context}\n\n{input}",
        128,
        "rouge_l",
    ),
    "lsht": LongBenchTask("请判断给定新闻的类别，下面是一些例子。\n\n{context}\n{input}", 64, "classification"),
    "passage_count": LongBenchTask(
        "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully read these paragraphs and determine how many unique paragraphs there are after removing duplicates. In other words, how many non-repeating paragraphs are there in total?\n\n{context}\n\nPlease enter the final count of unique paragraphs after removing duplicates. The output format should only contain the number, such as 1, 2, 3, and so on.\n\nThe final answer is: ",
        32,
        "count",
    ),
    "passage_retrieval_en": LongBenchTask(
        'Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the abstract is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\nPlease enter the number of the paragraph that the abstract is from. The answer format must be like "Paragraph 1", "Paragraph 2", etc.\n\nThe answer is: ',
        32,
        "retrieval",
    ),
    "passage_retrieval_zh": LongBenchTask(
        '以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n{context}\n\n下面是一个摘要\n\n{input}\n\n请输入摘要所属段落的编号。答案格式必须是"段落1"，"段落2"等格式\n\n答案是：',
        32,
        "retrieval",
    ),
    "lcc": LongBenchTask(
        "Please complete the code given below. \n{context}Next line of code:\n", 64, "edit_similarity"
    ),
    "repobench-p": LongBenchTask(
        "Please complete the code given below. \n{context}{input}Next line of code:\n", 64, "edit_similarity"
    ),
}
