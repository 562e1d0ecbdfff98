"""What generated complaints say: themes with their weight on relief, side remarks, names and places."""

from __future__ import annotations

from typing import NamedTuple


class Theme(NamedTuple):
    """One matter that people complain about.

    `weight` is added to the logit of relief; `share` and `drifted_share` are frequencies, before and under drift.
    """

    issue: str
    weight: float
    share: float
    drifted_share: float
    sentences: tuple[str, ...]


class Remark(NamedTuple):
    """A sentence beside the matter, with its weight on the logit of relief."""

    weight: float
    sentence: str


THEMES = (
    Theme(
        "Problem when making payments",
        2.3,
        0.15,
        0.06,
        (
            "my {account} was charged two times for the same {payment}",
            "the second {payment} of {amount} went out one day after the first",
            "they debited {amount} again although the {payment} had cleared",
            "an extra {payment} was pulled without my permission",
        ),
    ),
    Theme(
        "Charged fees or interest you didn't expect",
        1.4,
        0.17,
        0.08,
        (
            "a late charge of {amount} appeared even though i paid before the due date",
            "the agent agreed to waive the fee and then billed it anyway",
            "they put a returned item fee of {amount} on my statement by mistake",
            "i was charged for insurance that i had declined in writing",
        ),
    ),
    Theme(
        "Problem with the payoff process at the end of the loan",
        0.8,
        0.14,
        0.10,
        (
            "i paid the loan off and it still shows as open with a balance of {amount}",
            "every time i ask for a payoff amount they give me another number",
            "my title has not been released since the last {payment}",
            "the overpayment of {amount} was never sent back to me",
        ),
    ),
    Theme(
        "Incorrect information on your report",
        -0.4,
        0.16,
        0.18,
        (
            "this account is listed on my credit file and it does not belong to me",
            "they report me as past due and my score dropped",
            "i asked the bureaus to remove the entry and it was put back",
            "the balance on my report is wrong by {amount}",
        ),
    ),
    Theme(
        "Struggling to pay your loan",
        -1.3,
        0.20,
        0.24,
        (
            "the rate is so high that the balance does not go down",
            "i lost hours at work and cannot keep up with each {payment}",
            "they will not offer me a plan that i can afford",
            "after many months i have repaid more than i borrowed and still owe {amount}",
        ),
    ),
    Theme(
        "Getting the loan",
        -2.1,
        0.18,
        0.10,
        (
            "a man called and wanted gift cards worth {amount} before he would fund the loan",
            "someone opened this loan in my name and i never saw the money",
            "the website looks like a copy of a real lender",
            "i got a letter about a loan that i never applied for",
        ),
    ),
    Theme(
        "Problem with additional add-on products or services",
        -0.6,
        0.0,
        0.24,
        (
            "the app took a tip of {amount} that i could not switch off",
            "the phone app shows a cash advance that i did not request",
            "the subscription in the app cannot be cancelled",
            "the chat robot in the app closed my ticket without an answer",
        ),
    ),
)

REMARKS = (
    Remark(1.2, "my bank confirmed the error in a letter"),
    Remark(1.0, "their own manager said that it was a mistake"),
    Remark(0.7, "i want the {amount} returned to my {account}"),
    Remark(-0.7, "please make them stop ringing me at work"),
    Remark(-1.0, "i did sign the agreement but did not read all of it"),
    Remark(-1.1, "i do not deny that i owe this debt"),
    Remark(0.0, "i rang them {count} times"),
    Remark(0.0, "the staff were unfriendly"),
    Remark(0.0, "i have two children to feed"),
    Remark(0.0, "my emails are not answered"),
    Remark(0.0, "it began {count} months ago"),
    Remark(0.0, "i have borrowed from them before"),
    Remark(0.0, "each person tells me something else"),
    Remark(0.0, "i waited on hold for an hour"),
    Remark(0.0, "all of this costs me sleep"),
)

OPENINGS = (
    "i am writing about a loan from this lender",
    "i got an online loan of {amount} last year",
    "this concerns my account with the company",
    "i have tried to settle this myself",
    "i need somebody to look at my loan",
)

CLOSINGS = ("please help", "i hope that this can be put right", "thanks for reading", "this is not right", "")

SLOTS = {
    "payment": ("payment", "installment", "automatic payment", "debit"),
    "account": ("checking account", "bank account", "savings account", "debit card"),
    "count": ("two", "three", "four", "five", "six"),
}

PRODUCT = "Payday loan, title loan, or personal loan"
SUB_PRODUCTS = ("Installment loan", "Personal line of credit", "Payday loan", "Title loan", "Pawn loan")
SUB_PRODUCT_SHARES = (0.48, 0.24, 0.18, 0.09, 0.01)
PUBLIC_RESPONSES = (
    "None",
    "Company has responded to the consumer and the CFPB and chooses not to provide a public response",
    "Company believes it acted appropriately as authorized by contract or law",
)
PUBLIC_RESPONSE_SHARES = (0.76, 0.17, 0.07)
TAGS = ("None", "Servicemember", "Older American", "Older American, Servicemember")
TAG_SHARES = (0.70, 0.15, 0.12, 0.03)
STATES = (
    *("TX", "CA", "FL", "GA", "IL", "OH", "NY", "PA", "TN", "MI", "NC", "SC", "VA", "NJ", "AZ", "WA"),
    *("MO", "AL", "LA", "IN", "NV", "MD", "CO", "WI", "MN", "KY", "OK", "MS", "AR", "UT", "None"),
)

FIRST = ("Aspen", "Bright", "Copper", "Delta", "Ever", "Falcon", "Granite", "High", "Iron", "Juniper")
SECOND = ("ridge", "water", "leaf", "point", "shore", "vale")
THIRD = ("Lending, LLC", "Financial, Inc.", "Credit Company", "Loan Services", "Funding Corp.")
COMPANIES = tuple(f"{a}{b} {c}" for a in FIRST for b in SECOND for c in THIRD)
